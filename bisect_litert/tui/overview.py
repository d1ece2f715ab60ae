"""The first tab: the verdict in words, the plot, and the table of blocks, which follow each other."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.tui.block_table import BlockTable
from bisect_litert.tui.colours import colours_of
from bisect_litert.tui.divergence_plot import ZOOM, DivergencePlot
from bisect_litert.tui.plot_words import readout
from bisect_litert.vocabulary import Mark

TALL = 32
"""Rows from which there is room for the whole summary."""
MOST_LINES, FEWEST_LINES = 9, 2
_MORE = "… more: 4"


def _cut(text: Text, width: int, most: int) -> Text:
    """Returns a text in at most so many lines, the last saying where the rest stands."""
    lines = text.wrap(Console(width=width), width)
    if len(lines) <= most:
        return text
    last = lines[most - 1]
    last.truncate(width - len(_MORE))
    last.rstrip()
    last.append(_MORE, "dim")
    return Text("\n").join(lines[:most])


class Overview(Vertical):
    """Verdict, plot and table.

    Args:
        record: The run.
        selected: The block to start at, by order.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("n", "culprit(1)", "Next culprit", show=False),
        Binding("p,N", "culprit(-1)", "Previous culprit", show=False),
        Binding("m", "next_mark", "Mark"),
        Binding("x", "sort", "Sort"),
        Binding("plus,equals_sign", "zoom(1)", "Zoom", key_display="+/-"),
        Binding("minus", "zoom(-1)", "Zoom out", show=False),
        Binding("0", "zoom(0)", "All", show=False),
    ]

    class Selected(Message):
        """Another block is selected, or one is to be opened."""

        def __init__(self, order: int, opened: bool) -> None:
            super().__init__()
            self.order = order
            self.opened = opened

    def __init__(self, record: RunRecord, selected: int) -> None:
        super().__init__()
        self._record = record
        self._selected = selected

    def compose(self) -> ComposeResult:
        """Lays out the parts."""
        yield Static(id="summary")
        with Container(id="overview-body"):
            with Vertical(id="plot-side"):
                yield DivergencePlot(self._record, id="plot")
            with Vertical(id="table-side"):
                yield BlockTable(self._record, id="blocks")
                yield Input(placeholder="glob such as enc.* or **.norm, or part of a name", id="filter", compact=True)
        with Horizontal(id="status"):
            yield Static(id="readout")
            yield Static(id="table-note")

    def on_mount(self) -> None:
        """Selects the block to start at."""
        self.query_one("#filter").display = False
        self._write_summary()
        self.select(self._selected)
        self._write_note()

    def show(self, record: RunRecord) -> None:
        """Shows another record of the same run."""
        self._record = record
        self.query_one(DivergencePlot).show(record)
        self.query_one(BlockTable).show(record)
        self._write_summary()
        self._write_readout()
        self._write_note()

    def recolour(self) -> None:
        """Writes the texts in the theme's colours."""
        self._write_summary()
        self._write_note()

    def select(self, order: int) -> None:
        """Moves both cursors to a block."""
        self._selected = order
        self.query_one(DivergencePlot).select(order)
        self.query_one(BlockTable).select(order)
        self._write_readout()

    def _write_summary(self) -> None:
        verdict, colours = self._record.verdict, colours_of(self.app)
        text = Text(formats.clean(verdict.summary))
        if verdict.next_step:
            text.append("\nNext: ", f"bold {colours.accent}").append(formats.clean(verdict.next_step))
        for note in verdict.notes:
            text.append("\nNote: ", f"bold {colours.faint}").append(formats.clean(note), colours.faint)
        room = MOST_LINES if self.app.size.height >= TALL else FEWEST_LINES
        self.query_one("#summary", Static).update(_cut(text, max(20, self.app.size.width - 2), room))

    def on_resize(self) -> None:
        """Gives the summary the lines there are."""
        self._write_summary()

    def _write_readout(self) -> None:
        if self._record.blocks:
            text = readout(self._record, self._record.blocks[self._selected])
            # Its size does not depend on the text; a layout of the screen at every key would be felt.
            self.query_one("#readout", Static).update(text, layout=False)

    def _write_note(self) -> None:
        table = self.query_one(BlockTable)
        parts = [f"{len(table.shown)} of {formats.plural(len(self._record.blocks), 'block')}"]
        parts += [f"matching {table.pattern}"] if table.pattern else []
        parts += [f"marked {table.mark.value}"] if table.mark else []
        parts += [f"by {table.sorted_by}"] if table.sorted_by else []
        if len(parts) == 1:
            parts = [formats.plural(len(self._record.blocks), "block")]
        self.query_one("#table-note", Static).update(Text(" · ".join(parts), colours_of(self.app).faint))

    # -- plot and table follow each other ------------------------------------------------------------------------------

    @on(BlockTable.Picked)
    @on(DivergencePlot.Picked)
    def _picked(self, event: BlockTable.Picked | DivergencePlot.Picked) -> None:
        event.stop()
        if event.order != self._selected:
            self.select(event.order)
        self.post_message(self.Selected(event.order, event.opened))

    def action_culprit(self, by: int) -> None:
        """Goes to the next culprit in the data flow (1) or the previous one (-1), round the end."""
        orders = sorted(b.order for b in self._record.blocks if b.mark is Mark.CULPRIT)
        if orders:
            ahead = [o for o in orders[::by] if (o - self._selected) * by > 0]
            self.select((ahead or orders[::by])[0])
            self.post_message(self.Selected(self._selected, opened=False))

    def action_zoom(self, direction: int) -> None:
        """Zooms the plot in (1), out (-1), or shows all of it (0)."""
        plot = self.query_one(DivergencePlot)
        plot.zoom(0 if direction == 0 else (ZOOM if direction > 0 else 1 / ZOOM))

    # -- filter and order ----------------------------------------------------------------------------------------------

    def action_sort(self) -> None:
        """Sorts by the column the cursor is in."""
        table = self.query_one(BlockTable)
        table.sort_by(table.column_title)

    @on(BlockTable.Refilled)
    def _refilled(self, event: BlockTable.Refilled) -> None:
        event.stop()
        self._write_note()

    def action_next_mark(self) -> None:
        """Shows the blocks of the next mark there is, and all of them after the last."""
        table = self.query_one(BlockTable)
        there = [mark for mark in (Mark.CULPRIT, *Mark) if any(b.mark is mark for b in self._record.blocks)]
        ring: list[Mark | None] = [None, *dict.fromkeys(there)]
        table.filter(table.pattern, ring[(ring.index(table.mark) + 1) % len(ring)] if table.mark in ring else None)

    def action_filter(self) -> None:
        """Opens the filter line."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        table = self.query_one(BlockTable)
        table.filter(event.value.strip(), table.mark)

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self.close_filter(keep=True)

    def close_filter(self, keep: bool) -> bool:
        """Closes the filter line; without `keep` all blocks are shown again. Whether there was anything to close."""
        line, table = self.query_one("#filter", Input), self.query_one(BlockTable)
        was = bool(line.display or (not keep and (table.pattern or table.mark)))
        line.display = False
        if not keep:
            line.value = ""
            table.filter("", None)
        if was:
            table.focus()
        return was
