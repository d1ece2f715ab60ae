"""Saves what is on the screen as SVG or PNG, in the current directory, over nothing that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from bisect_litert.record import RunRecord
from bisect_litert.records.run_folder import label_of


class SaveScreen(ModalScreen[None]):
    """Asks for the format.

    Args:
        view: The screen to save.
        record: Its run, to name the file after.
        tab: The tab that is shown, likewise.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "Close")]

    def __init__(self, view: Screen[Any], record: RunRecord, tab: str) -> None:
        super().__init__()
        self._view, self._record, self._tab = view, record, tab

    def compose(self) -> ComposeResult:
        """Lays out the choice."""
        with Vertical(classes="dialog small") as dialog:
            dialog.border_title = "Save this view"
            yield OptionList(
                Option("SVG  sharp at any size, text stays text", id="svg"),
                Option("PNG  for issues and chats", id="png"),
            )

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss()
        kind = event.option_id or "svg"
        try:
            path = save(self._view, f"{label_of(self._record.model)}-{self._tab}", kind)
        except OSError as error:
            self.app.notify(
                f"The view cannot be saved here: {error.strerror or error}.", severity="error", markup=False
            )
            return
        self.app.notify(f"Saved {path}", markup=False)


def save(view: Screen[Any], name: str, kind: str, folder: Path = Path()) -> Path:
    """Saves a screen and returns the file.

    Args:
        view: The screen.
        name: What the file is about.
        kind: "svg" or "png".
        folder: Where to.

    Raises:
        OSError: The file cannot be written.
    """
    path = _free(folder, f"bisect-view-{name}", kind)
    if kind == "png":
        from bisect_litert.tui.png import write_png

        write_png(view, path)
    else:
        path.write_text(_svg(view), encoding="utf-8")
    return path


def _svg(view: Screen[Any]) -> str:
    import io

    from rich.console import Console

    size = view.size
    console = Console(
        width=size.width,
        height=size.height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        record=True,
        legacy_windows=False,
        safe_box=False,
    )
    console.print(view._compositor.render_update(full=True))
    return console.export_svg(title="bisect-litert")


def _free(folder: Path, name: str, kind: str) -> Path:
    path, count = folder / f"{name}.{kind}", 1
    while path.exists():
        count += 1
        path = folder / f"{name}-{count}.{kind}"
    return path
