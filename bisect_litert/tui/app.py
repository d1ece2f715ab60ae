"""The application: one run folder in tabs, or a picker of runs before it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from bisect_litert.errors import BisectError
from bisect_litert.record import RunRecord
from bisect_litert.tui import terminal
from bisect_litert.tui.block_search import BlockSearch
from bisect_litert.tui.keys import PAGER, meant
from bisect_litert.tui.run_screen import RunScreen


class BisectApp(App[None]):
    """The terminal UI. With a record it shows that run, without one a picker.

    Args:
        record: The run.
        folder: Its folder, with the tensors.
        other: An earlier run to compare it with.
        other_folder: That one's folder.
        runs: Folder whose runs the picker lists.
        light: Start with the light theme; None asks the terminal.
    """

    CSS_PATH = "app.tcss"
    TITLE = "bisect-litert"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    COMMANDS = App.COMMANDS | {BlockSearch}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help"),
        Binding("t", "toggle_light", "Light/dark", show=False),
        Binding("q", "quit", "Quit"),
        *PAGER,
    ]

    def __init__(
        self,
        record: RunRecord | None = None,
        folder: Path | None = None,
        *,
        other: RunRecord | None = None,
        other_folder: Path | None = None,
        runs: Path = Path(),
        light: bool | None = None,
    ) -> None:
        super().__init__()
        self._record, self._folder = record, folder
        self._other, self._other_folder = other, other_folder
        self._runs = runs
        light = terminal.is_light() if light is None else light
        self.theme = "textual-light" if light else "textual-dark"

    def compose(self) -> ComposeResult:
        """Nothing stands outside of the screens."""
        return iter(())

    def on_mount(self) -> None:
        """Shows the run or the picker."""
        if self._record is not None:
            self.push_screen(RunScreen(self._record, self._folder, self._other, self._other_folder))
        else:
            self._pick()

    def _pick(self) -> None:
        from bisect_litert.tui.picker import PickerScreen

        self.push_screen(PickerScreen(self._runs))

    def open_run(self, folder: Path) -> None:
        """Opens a run folder on top of the picker; one that cannot be read costs a sentence."""
        try:
            record = RunRecord.load(folder)
        except BisectError as error:
            self.notify(f"{error.message} {error.hint}", severity="error", markup=False)
            return
        self.push_screen(RunScreen(record, folder))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Adds the tabs and what has a key to the command palette."""
        if isinstance(screen, RunScreen):
            yield from screen.commands()
        for command in super().get_system_commands(screen):
            if command.title not in ("Screenshot", "Maximize", "Minimize", "Keys"):
                yield command

    def action_help(self) -> None:
        """Shows the keys and what the columns mean."""
        from bisect_litert.tui.help import HelpScreen

        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())

    def action_as_if(self, key: str) -> None:
        """Does what another key does."""
        self.simulate_key(meant(key, self.focused))

    def action_toggle_light(self) -> None:
        """Changes between the light and the dark theme."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"

    def copy_to_clipboard(self, text: str) -> None:
        """Copies by the terminal's escape sequence, and by tmux itself inside tmux, which swallows that sequence."""
        super().copy_to_clipboard(text)
        terminal.copy_in_tmux(text)
