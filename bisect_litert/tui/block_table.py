"""The table of blocks: sortable, filterable by glob and by mark, its cursor on a cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable

from bisect_litert.block_record import BlockResult, Comparison
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten_all
from bisect_litert.reports.outcome import local_on_target, on_target
from bisect_litert.tui.colours import Colours, colours_of
from bisect_litert.vocabulary import Mark, Residency

NAME_CELLS = 22


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, its text, and what to sort by (nan goes last)."""

    title: str
    text: Callable[[RunRecord, BlockResult], str]
    key: Callable[[RunRecord, BlockResult], float]


def _total(value: Callable[[Comparison], float], write: Callable[[Comparison], str]) -> Callable[[str], Column]:
    def column(title: str) -> Column:
        def text(record: RunRecord, block: BlockResult) -> str:
            comparison = on_target(record, block)
            return "-" if comparison is None else write(comparison)

        def key(record: RunRecord, block: BlockResult) -> float:
            comparison = on_target(record, block)
            return nan if comparison is None else _worst_if_nan(value(comparison))

        return Column(title, text, key)

    return column


def _worst_if_nan(value: float) -> float:
    # Nothing finite left to compare is the worst there is.
    return inf if isnan(value) else value


def _local_value(record: RunRecord, block: BlockResult) -> float:
    comparison = local_on_target(record, block)
    return nan if comparison is None else _worst_if_nan(comparison.relative_l2)


def _local_text(record: RunRecord, block: BlockResult) -> str:
    comparison = local_on_target(record, block)
    return "-" if comparison is None else formats.number(comparison.relative_l2)


def _known(value: float) -> str:
    return "-" if isnan(value) else formats.number(value)


_ORDER = {mark: i for i, mark in enumerate((Mark.CULPRIT, Mark.NOTE, Mark.UNKNOWN, Mark.UNTAPPED, Mark.AFTER, Mark.OK))}

COLUMNS = (
    Column("block", lambda _, b: b.name, lambda _, b: b.order),
    Column("mark", lambda _, b: b.mark.value, lambda _, b: _ORDER[b.mark]),
    _total(lambda c: c.relative_l2, lambda c: formats.number(c.relative_l2))("rel L2"),
    Column("local", _local_text, _local_value),
    Column("ratio", lambda _, b: _known(b.ratio), lambda _, b: b.ratio),
    Column("expected", lambda _, b: _known(b.expected), lambda _, b: b.expected),
    _total(lambda c: -c.correlation, lambda c: formats.correlation(c.correlation))("corr"),
    _total(lambda c: c.reference_peak, lambda c: formats.number(c.reference_peak))("peak"),
    _total(lambda c: c.nonfinite, lambda c: formats.count(c.nonfinite))("n-fin"),
    _total(lambda c: c.zeros / max(1, c.elements), formats.share_of_zeros)("zeros"),
    Column("ampl.", lambda _, b: _known(b.amplification), lambda _, b: b.amplification),
    Column("ops", lambda _, b: str(b.ops), lambda _, b: b.ops),
    Column("on", lambda _, b: formats.PLACES[b.residency], lambda _, b: list(Residency).index(b.residency)),
    Column("class", lambda _, b: b.class_name, lambda _, b: nan),
)
BIGGEST_FIRST = {c.title for c in COLUMNS} - {"block", "mark", "class", "on"}


class BlockTable(DataTable[Text]):
    """The table.

    Args:
        record: The run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "Open block", show=False)]

    class Picked(Message):
        """The cursor moved to a block, or a block was opened."""

        def __init__(self, order: int, opened: bool = False) -> None:
            super().__init__()
            self.order = order
            self.opened = opened

    class Refilled(Message):
        """Other rows are shown, or in another order."""

    def __init__(self, record: RunRecord, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="cell", zebra_stripes=True, fixed_columns=1, cell_padding=1)
        self._record = record
        self.shown: list[int] = []
        """Orders of the blocks in the rows."""
        self.pattern = ""
        self.mark: Mark | None = None
        self.sorted_by = ""
        """Title of the column the rows are sorted by; "" in the order of the data flow."""
        self.reverse = False
        self._selected = 0
        self._colours: Colours | None = None

    def on_mount(self) -> None:
        """Fills the table."""
        self.fill()

    def notify_style_update(self) -> None:
        """Fills it again in a new theme's colours; most styles that change, as with the focus, change none of them."""
        super().notify_style_update()
        if self.is_mounted and self.columns and self._colours != colours_of(self.app):
            self.fill()

    def show(self, record: RunRecord) -> None:
        """Shows another record of the same run, keeping filter, order and cursor."""
        self._record = record
        self.fill()

    def filter(self, pattern: str, mark: Mark | None) -> None:
        """Shows only the blocks that match."""
        self.pattern, self.mark = pattern, mark
        self.fill()

    def sort_by(self, title: str) -> None:
        """Sorts by a column; again turns the order round, a third time goes back to the data flow."""
        first = title in BIGGEST_FIRST
        if self.sorted_by != title:
            self.sorted_by, self.reverse = title, first
        elif self.reverse == first:
            self.reverse = not first
        else:
            self.sorted_by, self.reverse = "", False
        self.fill()

    def fill(self) -> None:
        """Writes all rows."""
        column = self.cursor_column
        self._colours = colours = colours_of(self.app)
        names = shorten_all([formats.clean(b.name) for b in self._record.blocks], NAME_CELLS)
        rows = [b for b in self._record.blocks if matches(b, self.pattern, self.mark)]
        by = next((c for c in COLUMNS if c.title == self.sorted_by), None)
        if by is not None:
            known = [b for b in rows if not isnan(by.key(self._record, b))]
            known.sort(key=lambda b: by.key(self._record, b), reverse=self.reverse)
            rows = [*known, *(b for b in rows if isnan(by.key(self._record, b)))]
        with self.prevent(DataTable.CellHighlighted):
            self.clear(columns=True)
            for c in COLUMNS:
                arrow = (" ▼" if self.reverse else " ▲") if c.title == self.sorted_by else ""
                title = Text(c.title + arrow, justify="left" if c.title in ("block", "mark", "class") else "right")
                self.add_column(title, key=c.title)
            for block in rows:
                style = colours.of(block.mark)
                name = Text.assemble((formats.SYMBOLS[block.mark], style), " ", names[block.order], no_wrap=True)
                name.stylize("bold" if block.mark is Mark.CULPRIT else "")
                cells = [name, Text(block.mark.value, style)]
                faint = colours.faint if block.mark in (Mark.AFTER, Mark.UNTAPPED, Mark.UNKNOWN) else colours.text
                for c in COLUMNS[2:]:
                    text = formats.clean(c.text(self._record, block))
                    cells.append(Text(text, faint, justify="left" if c.title == "class" else "right"))
                self.add_row(*cells, key=str(block.order))
            self.shown = [b.order for b in rows]
            self._go(self._selected, max(column, 0))
        self.post_message(self.Refilled())

    def select(self, order: int) -> None:
        """Moves the cursor to a block, if it is shown."""
        self._selected = order
        self._go(order, self.cursor_column)
        # The table itself scrolls after the next refresh; this comes behind that.
        self.call_after_refresh(self.call_after_refresh, self._centre)

    def _centre(self) -> None:
        """Brings a cursor that was set from outside away from the edge."""
        room = self.size.height - self.header_height
        row = self.cursor_row - round(self.scroll_y)
        if room > 4 and not 1 <= row < room - 1:
            self.scroll_to(y=self.cursor_row - room // 2, animate=False)

    def _go(self, order: int, column: int) -> None:
        if order in self.shown:
            row = self.shown.index(order)
            if self.cursor_coordinate != Coordinate(row, column):
                self.move_cursor(row=row, column=column, animate=False)

    @property
    def cell_text(self) -> str:
        """The text under the cursor; a block's whole name, however it is shown."""
        if not self.shown:
            return ""
        block = self._record.blocks[self.shown[self.cursor_row]]
        return COLUMNS[self.cursor_column].text(self._record, block)

    @property
    def column_title(self) -> str:
        """Title of the column the cursor is in."""
        return COLUMNS[self.cursor_column].title

    def on_data_table_cell_highlighted(self, event: DataTable.CellHighlighted) -> None:
        """Tells which block the cursor is on."""
        event.stop()
        if self.shown and 0 <= event.coordinate.row < len(self.shown):
            self._selected = self.shown[event.coordinate.row]
            self.post_message(self.Picked(self._selected))

    def on_data_table_cell_selected(self, event: DataTable.CellSelected) -> None:
        """A click on the cell that has the cursor, or Enter, opens the block."""
        event.stop()
        if self.shown:
            self.post_message(self.Picked(self.shown[event.coordinate.row], opened=True))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a title sorts."""
        event.stop()
        self.sort_by(COLUMNS[event.column_index].title)

    def action_open(self) -> None:
        """Opens the block under the cursor."""
        if self.shown:
            self.post_message(self.Picked(self.shown[self.cursor_row], opened=True))


def matches(block: BlockResult, pattern: str, mark: Mark | None) -> bool:
    """Whether a block passes a filter: a glob over its whole name (`*` stays within a level, `**` crosses), or, without
    wildcards, a part of it."""
    if mark is not None and block.mark is not mark:
        return False
    if not pattern:
        return True
    if not any(char in pattern for char in "*?["):
        return pattern.lower() in block.name.lower()
    expression = "".join(
        {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}.get(part, re.escape(part))
        for part in re.split(r"(\*\*|\*|\?)", pattern)
    )
    return re.fullmatch(expression, block.name, re.IGNORECASE) is not None
