"""The third tab: a culprit's ops in order, how far each is off by itself, how large its values get, and its line."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, log10
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Static

from bisect_litert.block_record import OpResult
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten
from bisect_litert.reports.outcome import cause_words
from bisect_litert.tui.colours import Colours, colours_of
from bisect_litert.tui.stepped import Stepped
from bisect_litert.vocabulary import LITERT_CPU, Mark

FP16_MAX = 65504.0
BAR, SHORT_BAR = 16, 9
"""Cells of a range bar, which spans LOW to HIGH on a log scale, in wide and in narrow terminals."""
FRAME = 6
"""Cells that the panel's frame and padding take from a line."""
LOW, HIGH = -4.0, 8.0


class OpsView(Vertical):
    """The ops of one culprit.

    Args:
        record: The run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "step(1)", "Next"),
        Binding("p,N", "step(-1)", "Previous", key_display="p"),
        Binding("c", "guilty", "Guilty"),
    ]

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self._record = record
        self._culprit: Culprit | None = None

    def compose(self) -> ComposeResult:
        """Lays out headline, table and details."""
        yield Static(id="ops-headline", classes="headline")
        yield DataTable[Text](id="ops-table", cursor_type="row", zebra_stripes=True, cell_padding=1)
        with VerticalScroll(id="ops-detail", can_focus=False):
            yield Static(id="ops-source", classes="panel")

    def show(self, record: RunRecord, order: int) -> None:
        """Shows the ops of the selected block, or of the first culprit when that is none."""
        self._record = record
        name = record.blocks[order].name if record.blocks else ""
        culprits = record.culprits
        self._culprit = next((c for c in culprits if c.block == name), culprits[0] if culprits else None)
        self._fill(name)

    def action_step(self, by: int) -> None:
        """Goes to the next or the previous culprit."""
        culprits = self._record.culprits
        if self._culprit not in culprits:
            return
        wanted = culprits[(culprits.index(self._culprit) + by) % len(culprits)].block
        order = next((b.order for b in self._record.blocks if b.name == wanted), None)
        if order is not None:
            self.post_message(Stepped(order))

    def action_guilty(self) -> None:
        """Moves the cursor to the guilty op."""
        if self._culprit is not None:
            for row, op in enumerate(self._culprit.ops):
                if is_guilty(op, self._culprit):
                    self.query_one("#ops-table", DataTable).move_cursor(row=row)
                    return

    def _fill(self, selected: str) -> None:
        table, colours = self.query_one("#ops-table", DataTable), colours_of(self.app)
        head, panel = Text(), self.query_one("#ops-source", Static)
        table.clear(columns=True)
        culprit = self._culprit
        if culprit is None:
            head.append("There is no culprit, so no block was taken apart into its ops.", colours.faint)
            table.display = panel.display = False
            self.query_one("#ops-headline", Static).update(head)
            return
        head.append(f"✗ {formats.clean(culprit.block)}", f"bold {colours.bad}")
        head.append(f"  {cause_words(culprit.cause, culprit.kind)}")
        number = self._record.culprits.index(culprit) + 1
        head.append(f"   culprit {number} of {len(self._record.culprits)}", colours.faint)
        if selected and selected != culprit.block:
            head.append(f"   ({formats.clean(selected)} is no culprit)", colours.faint)
        head.append_text(_where(culprit, colours))
        self.query_one("#ops-headline", Static).update(head)
        table.display, panel.display = bool(culprit.ops), True
        if not culprit.ops:
            self._no_ops(culprit)
            return
        adds = any(not isnan(op.contribution) for op in culprit.ops)
        bar = BAR if self.app.size.width >= 100 else SHORT_BAR
        titles = ["op", "type", "local", "largest ┊65504", *(["adds"] if adds else []), "line", "module"]
        for title in titles:
            table.add_column(Text(title, justify="right" if title in ("local", "adds") else "left"), key=title)
        for op in culprit.ops:
            table.add_row(*op_cells(op, culprit, colours, bar, adds), key=str(op.index))
        # Only once the details below have taken their room is it known which rows are in view.
        self.call_after_refresh(self.action_guilty)
        self._detail(culprit.ops[table.cursor_row] if table.cursor_row < len(culprit.ops) else culprit.ops[0])

    def _no_ops(self, culprit: Culprit) -> None:
        panel, text = self.query_one("#ops-source", Static), Text()
        panel.border_title = "No ops"
        text.append("This run did not measure the block's ops one by one. What it says of them:\n")
        for sentence in culprit.evidence:
            text.append(f"\n· {formats.clean(sentence)}")
        panel.update(text)

    @on(DataTable.RowHighlighted, "#ops-table")
    def _moved(self, event: DataTable.RowHighlighted) -> None:
        if self._culprit is not None and event.cursor_row < len(self._culprit.ops):
            self._detail(self._culprit.ops[event.cursor_row])

    def _detail(self, op: OpResult) -> None:
        assert self._culprit is not None
        culprit, colours = self._culprit, colours_of(self.app)
        panel, text = self.query_one("#ops-source", Static), Text(no_wrap=True, overflow="ellipsis")
        panel.border_title = f"op {op.index} {formats.clean(op.type)}"
        shapes = ", ".join(map(formats.shape, op.inputs)) or "nothing"
        text.append(shorten(f"{shapes} → {formats.shape(op.shape)}", 70), "")
        room = self.app.size.width - text.cell_len - 14
        text.append(f"   writes {formats.clean(shorten(op.tensor, room))}\n" if room > 16 else "\n", colours.faint)
        if op.local is not None:
            error = Text(
                f"at its own operands {formats.number(op.local.relative_l2)} off"
                f", {op.local.new_nonfinite} not finite, {op.local.new_zeros} zero"
            )
        else:
            error = Text("it was not read", colours.faint)
        size = Text("largest |value| ").append_text(_against_limit(op.reference_peak, colours))
        if op.accumulated:
            size.append(", adds up to ").append_text(_against_limit(op.accumulated, colours))
        fits = error.cell_len + size.cell_len + 2 <= self.app.size.width - FRAME
        text.append_text(error).append("; " if fits else "\n").append_text(size).append("\n")
        alone = self._record.reference == LITERT_CPU
        text.append_text(source_lines(op, culprit, colours, of_file=alone))
        panel.update(text)


def _against_limit(value: float, colours: Colours) -> Text:
    over = value > FP16_MAX
    return Text(f"{formats.number(value)}{' > 65504' if over else ''}", f"bold {colours.bad}" if over else "")


def _where(culprit: Culprit, colours: Colours) -> Text:
    text = Text()
    guilty = next((op for op in culprit.ops if op.index == culprit.op), None)
    if culprit.region:
        text.append(f"\nops {culprit.region[0]} to {culprit.region[-1]} are wrong only as a whole", colours.warn)
    elif guilty is not None:
        text.append(f"\n{guilty.type} (op {guilty.index})", "bold")
    elif culprit.op >= 0:
        text.append(f"\nop {culprit.op}", "bold")
    if culprit.module:
        text.append(f" in {formats.clean(culprit.module)}")
    if culprit.source:
        text.append(f", {formats.clean(culprit.source)}", colours.accent)
    return text


def is_guilty(op: OpResult, culprit: Culprit) -> bool:
    """Whether an op is the one, or part of the region, that a culprit is blamed on."""
    if culprit.region:
        return culprit.region[0] <= op.index <= culprit.region[-1]
    return op.index == culprit.op or (culprit.op < 0 and op.mark is Mark.CULPRIT)


def op_cells(op: OpResult, culprit: Culprit, colours: Colours, bar: int, adds: bool) -> Sequence[Text]:
    """Returns an op's row, with a range bar of `bar` cells, and with its contribution if `adds`."""
    guilty = is_guilty(op, culprit)
    style = f"bold {colours.bad}" if guilty else ""
    local = "-" if op.local is None else formats.number(op.local.relative_l2)
    if op.local is not None and op.local.new_nonfinite:
        local = f"{formats.count(op.local.new_nonfinite)} n-fin"
    source = shorten(formats.clean(op.source.rpartition("/")[2] or "-"), 20 if bar == SHORT_BAR else 40)
    return (
        Text(f"{'✗' if guilty else formats.SYMBOLS[op.mark]} {op.index}", style or colours.of(op.mark)),
        Text(formats.clean(op.type), style),
        Text(local, style, justify="right"),
        range_bar(op.reference_peak, colours, bar),
        *([Text("-" if isnan(op.contribution) else formats.number(op.contribution), justify="right")] if adds else []),
        Text(source, colours.accent if source != "-" else colours.faint),
        Text(formats.clean(shorten(op.module, 28)) or "-", colours.faint),
    )


def range_bar(peak: float, colours: Colours, cells: int = BAR) -> Text:
    """Returns a bar as long as a magnitude is large, with fp16's largest number marked, and the number."""
    limit = round((log10(FP16_MAX) - LOW) / (HIGH - LOW) * cells)
    if isnan(peak):
        return Text("-", colours.faint)
    share = 1.0 if not isfinite(peak) else (log10(max(peak, 1e-30)) - LOW) / (HIGH - LOW)
    filled = max(0, min(cells, round(share * cells)))
    over = peak > FP16_MAX
    # Rounding must not let what is inside look outside, nor the other way round.
    filled = max(filled, limit + 1) if over else min(filled, limit)
    text = Text(no_wrap=True)
    for cell in range(cells):
        if cell == limit:
            text.append("┃" if cell < filled else "┊", colours.bad if over else colours.warn)
        elif cell < filled:
            text.append("█" if cell > limit else "▬", colours.bad if cell > limit else colours.text)
        else:
            text.append("·", colours.faint)
    return text.append(f" {formats.number(peak):>6}{'!' if over else ''}", f"bold {colours.bad}" if over else "")


def source_lines(op: OpResult, culprit: Culprit, colours: Colours, *, of_file: bool = False) -> Text:
    """Returns the source around an op's line: the culprit's excerpt where it shows that line, else the line.

    Args:
        op: The op.
        culprit: Whose op it is.
        colours: How to draw it.
        of_file: Whether the model is a .tflite file alone.
    """
    text = Text()
    if culprit.code and (is_guilty(op, culprit) or op.source in ("", culprit.source)):
        for line in formats.clean(culprit.code).splitlines():
            marked = line.startswith(">")
            text.append(line + "\n", f"bold {colours.bad} on {colours.band}" if marked else "")
    elif op.code:
        text.append(f"{formats.clean(op.source)}\n", colours.accent).append(f"  {formats.clean(op.code.strip())}\n")
    else:
        why = "A .tflite file holds no source lines." if of_file else "The source line is not known."
        text.append(f"{why}\n", colours.faint)
    text.rstrip()
    return text
