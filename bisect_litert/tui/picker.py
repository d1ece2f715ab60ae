"""Recent runs to choose from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from bisect_litert.reports import formats
from bisect_litert.tui.colours import colours_of
from bisect_litert.tui.runs import RunLine, find_runs

if TYPE_CHECKING:
    from bisect_litert.tui.app import BisectApp


class PickerScreen(Screen[None]):
    """The run folders of a folder.

    Args:
        base: Where to look.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        Binding("r", "reload", "Look again"),
    ]

    def __init__(self, base: Path) -> None:
        super().__init__()
        self._base = base
        self._lines: list[RunLine] = []

    def compose(self) -> ComposeResult:
        """Lays out title and table."""
        yield Static(id="picker-title")
        yield DataTable[Text](id="runs", cursor_type="row", zebra_stripes=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Lists the runs."""
        self.app.theme_changed_signal.subscribe(self, lambda _: self.action_reload())
        self.action_reload()
        self.query_one(DataTable).focus()

    def action_reload(self) -> None:
        """Lists the runs there are now."""
        table, colours = self.query_one(DataTable), colours_of(self.app)
        row = table.cursor_row
        self._lines = find_runs(self._base)
        title = Text("bisect-litert", "bold")
        title.append(f"  {formats.plural(len(self._lines), 'run')} in this directory, the newest first")
        title.append("\nEnter opens one.", colours.faint)
        self.query_one("#picker-title", Static).update(title)
        table.clear(columns=True)
        for name in ("when", "verdict", "model", "target", "took", "folder"):
            table.add_column(name, key=name)
        for line in self._lines:
            if line.trouble:
                cells = [line.when, f"? {line.trouble}", "", "", "", line.folder.name]
            else:
                cells = [
                    line.when,
                    line.verdict,
                    line.model,
                    line.target,
                    formats.seconds(line.seconds),
                    line.folder.name,
                ]
            style = {"✗": colours.bad, "✓": colours.good}.get(cells[1][:1], colours.warn)
            table.add_row(*(Text(formats.clean(c), style if i == 1 else "") for i, c in enumerate(cells)))
        if self._lines:
            table.move_cursor(row=min(row, len(self._lines) - 1))

    @on(DataTable.RowSelected, "#runs")
    def _chosen(self, event: DataTable.RowSelected) -> None:
        cast("BisectApp", self.app).open_run(self._lines[event.cursor_row].folder)

    def action_open(self) -> None:
        """Opens the run under the cursor."""
        if self._lines:
            cast("BisectApp", self.app).open_run(self._lines[self.query_one(DataTable).cursor_row].folder)
