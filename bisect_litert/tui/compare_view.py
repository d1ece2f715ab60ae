"""The fifth tab: this run against an earlier one."""

from __future__ import annotations

from math import isnan
from pathlib import Path

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import DataTable, Static

from bisect_litert.record import RunRecord
from bisect_litert.records.comparing import Change, RunDiff, compare_runs, headline
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten_all
from bisect_litert.tui.block_table import NAME_CELLS
from bisect_litert.tui.colours import Colours, colours_of
from bisect_litert.tui.runs import RunLine, find_runs
from bisect_litert.wording import some_of

SYMBOLS = {
    Change.FIXED: "✓",
    Change.NEW: "✗",
    Change.KEPT: "✗",
    Change.BETTER: "▼",
    Change.WORSE: "▲",
    Change.SAME: "=",
    Change.ONLY_BEFORE: "-",
    Change.ONLY_AFTER: "+",
    Change.UNKNOWN: "?",
}


class CompareView(Vertical):
    """A comparison, or the choice of what to compare with.

    Args:
        record: The later run.
        folder: Its folder, beside which earlier runs are looked for.
        other: The earlier run, if it is chosen already.
        other_folder: Its folder.
    """

    def __init__(
        self, record: RunRecord, folder: Path | None, other: RunRecord | None, other_folder: Path | None
    ) -> None:
        super().__init__()
        self._record, self._folder = record, folder
        self._other, self._other_folder = other, other_folder
        self._choices: list[RunLine] = []

    def compose(self) -> ComposeResult:
        """Lays out headline, table and what else differs."""
        yield Static(id="compare-headline", classes="headline")
        yield DataTable[Text](id="compare-table", cursor_type="row", zebra_stripes=True, fixed_columns=1)
        with VerticalScroll(can_focus=False, id="compare-rest"):
            yield Static(id="compare-facts", classes="panel")

    def on_mount(self) -> None:
        """Shows the comparison or the choice."""
        self.recolour()

    def compare(self, other: RunRecord, folder: Path) -> None:
        """Compares with an earlier run."""
        self._other, self._other_folder = other, folder
        self.recolour()

    @property
    def markdown(self) -> str:
        """The comparison as Markdown, "" without one."""
        if self._other is None:
            return ""
        from bisect_litert.reports.diff import markdown

        return markdown(compare_runs(before=self._other, after=self._record))

    def recolour(self) -> None:
        """Writes everything in the theme's colours."""
        if self._other is None:
            self._offer()
        else:
            self._write(compare_runs(before=self._other, after=self._record))

    # -- the choice ----------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        table, head = self.query_one("#compare-table", DataTable), self.query_one("#compare-headline", Static)
        base = self._folder.resolve().parent if self._folder else Path()
        mine = self._folder.resolve() if self._folder else None
        self._choices = [line for line in find_runs(base) if line.folder.resolve() != mine and not line.trouble]
        table.clear(columns=True)
        self.query_one("#compare-rest").display = False
        table.display = bool(self._choices)
        if not self._choices:
            head.update(
                "There is no other run beside this one to compare with. Make one after a change, then:\n\n"
                "  bisect-litert diff BEFORE AFTER"
            )
            return
        head.update("Compare this run with an earlier one: choose it and press Enter.")
        for title in ("when", "model", "verdict", "folder"):
            table.add_column(title, key=title)
        for line in self._choices:
            table.add_row(*(Text(formats.clean(c)) for c in (line.when, line.model, line.verdict, line.folder.name)))

    @on(DataTable.RowSelected, "#compare-table")
    def _chosen(self, event: DataTable.RowSelected) -> None:
        from bisect_litert.tui.run_screen import RunScreen

        if self._other is None and isinstance(self.screen, RunScreen) and event.cursor_row < len(self._choices):
            self.screen.compare_with(self._choices[event.cursor_row].folder)

    # -- the comparison ------------------------------------------------------------------------------------------------

    def _write(self, diff: RunDiff) -> None:
        table, colours = self.query_one("#compare-table", DataTable), colours_of(self.app)
        self.query_one("#compare-headline", Static).update(self._head(diff, colours))
        self.query_one("#compare-rest").display = True
        table.display = True
        table.clear(columns=True)
        for title in (
            "block",
            "change",
            "rel L2 before",
            "after",
            "local before",
            "after ",
            "marked before",
            "after  ",
        ):
            table.add_column(Text(title, justify="left" if "block" in title or "mark" in title else "right"), key=title)
        names = shorten_all([formats.clean(row.name) for row in diff.blocks], NAME_CELLS)
        for name, row in zip(names, diff.blocks, strict=True):
            style = _style(row.change, colours)
            numbers = [*row.cumulative, *row.local]
            table.add_row(
                Text.assemble((SYMBOLS[row.change], style), " ", name, no_wrap=True),
                Text(row.change.value, style),
                *(Text("-" if isnan(v) else formats.number(v), justify="right") for v in numbers),
                *(
                    Text(
                        f"{formats.SYMBOLS[b.mark]} {b.mark.value}" if b else "no partner",
                        colours.of(b.mark) if b else colours.faint,
                    )
                    for b in (row.before, row.after)
                ),
            )
        text = Text()
        for fact in diff.facts:
            text.append(f"{formats.clean(fact.name)}: ", colours.faint)
            text.append(f"{formats.clean(fact.before)} → {formats.clean(fact.after)}\n")
        text.rstrip()
        panel = self.query_one("#compare-facts", Static)
        panel.border_title = "What else differs"
        panel.update(
            text if text else Text("Model, versions, device, inputs and tolerances are the same.", colours.faint)
        )

    def _head(self, diff: RunDiff, colours: Colours) -> Text:
        before = self._other_folder.name if self._other_folder else diff.before.model
        after = self._folder.name if self._folder else diff.after.model
        text = Text(headline(diff), "bold")
        text.append(f"\n{formats.clean(before)} → {formats.clean(after)}", colours.faint)
        for word, style, names in (
            ("✓ fixed", colours.good, [c.block for c in diff.fixed]),
            ("✗ new", colours.bad, [c.block for c in diff.new]),
            ("→ moved", colours.warn, [f"{a.block} → {b.block}" for a, b in diff.moved]),
            ("✗ still there", colours.bad, [a.block for a, _ in diff.kept]),
            ("? gone with its block", colours.warn, [c.block for c in diff.gone]),
            ("no partner", colours.faint, [row.name for row in diff.unmatched]),
        ):
            if names:
                some = some_of(names, 6)
                text.append(f"\n{word}: ", f"bold {style}").append(formats.clean(some))
        return text


def _style(change: Change, colours: Colours) -> str:
    styles = {
        Change.FIXED: f"bold {colours.good}",
        Change.BETTER: colours.good,
        Change.NEW: f"bold {colours.bad}",
        Change.KEPT: colours.bad,
        Change.WORSE: colours.warn,
    }
    return styles.get(change, colours.faint)
