"""The sixth tab: other tolerances, and the verdict that the stored numbers give with them."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Label, Static

from bisect_litert.errors import UsageError
from bisect_litert.record import RunRecord, Settings
from bisect_litert.records.rethreshold import TOLERANCES, Recomputed, changed, number
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import headline
from bisect_litert.tui.colours import colours_of

EXPLAINED = {
    "ratio": "local / expected error from which a block is at fault",
    "output": "relative L2 error from which a model output is out of line",
    "jump": "growth of the error in one block that counts as a loss of digits",
    "conversion": "error of the CPU run from which the conversion is in question",
}


class TolerancesView(VerticalScroll):
    """Four numbers to change.

    Args:
        record: The run as it was judged.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "turn(2.0)", "Double", key_display="↑", priority=True),
        Binding("down", "turn(0.5)", "Halve", key_display="↓", priority=True),
        Binding("ctrl+r", "restore", "The run's own"),
        Binding("escape", "screen.back", "Back"),
    ]

    class Changed(Message):
        """Other tolerances were asked for."""

        def __init__(self, settings: Settings) -> None:
            super().__init__()
            self.settings = settings

    def __init__(self, record: RunRecord) -> None:
        super().__init__(can_focus=False)
        self._original = record
        self._settings = record.settings
        self._judged = Recomputed(record, (), ())
        self._trouble = ""

    def compose(self) -> ComposeResult:
        """Lays out a line for each tolerance, and what comes of them."""
        yield Static(
            "The verdict again, with other tolerances, from the numbers that the run kept. Nothing is run.",
            classes="headline",
        )
        for name, field in TOLERANCES.items():
            with Horizontal(classes="tolerance-row"):
                yield Label(name)
                yield Input(f"{getattr(self._settings, field):g}", id=f"tolerance-{name}", compact=True)
                yield Label(f"run: {getattr(self._settings, field):g} · {EXPLAINED[name]}", classes="explained")
        yield Static(id="tolerance-result", classes="panel")

    def on_mount(self) -> None:
        """Shows the verdict as it is."""
        self.recolour()

    def action_turn(self, factor: float) -> None:
        """Doubles or halves the tolerance that is being edited."""
        focused = self.screen.focused
        if isinstance(focused, Input) and (focused.id or "").startswith("tolerance-"):
            name = (focused.id or "").removeprefix("tolerance-")
            value = getattr(self._settings, TOLERANCES[name]) * factor
            focused.value = f"{max(1.0, value) if name in ('ratio', 'jump') else value:g}"

    def action_restore(self) -> None:
        """Goes back to the run's own tolerances."""
        for name, field in TOLERANCES.items():
            self.query_one(f"#tolerance-{name}", Input).value = f"{getattr(self._original.settings, field):g}"

    @on(Input.Changed)
    def _edited(self) -> None:
        settings, self._trouble = self._original.settings, ""
        for name, field in TOLERANCES.items():
            text = self.query_one(f"#tolerance-{name}", Input).value
            # What is shown is rounded; as long as it is not touched, the run's own number counts.
            if text == f"{getattr(self._original.settings, field):g}":
                continue
            try:
                settings = changed(settings, name, number(text, name))
            except UsageError as error:
                self._trouble = f"{error.message} {error.hint}"
        if self._trouble or settings == self._settings:  # the lines' own first words are news of nothing
            self.recolour()
        else:
            self._settings = settings
            self.post_message(self.Changed(settings))

    def show(self, judged: Recomputed) -> None:
        """Shows what came of the tolerances."""
        self._judged = judged
        self.recolour()

    def recolour(self) -> None:
        """Writes the result."""
        colours, record = colours_of(self.app), self._judged.record
        text = Text()
        if self._trouble:
            text.append(f"{self._trouble}\n\n", colours.warn)
        style = colours.bad if record.verdict.diverged else colours.good
        symbol = "✗" if record.verdict.diverged else ("✓" if record.verdict.cause.value == "none" else "!")
        text.append(f"{symbol} {formats.clean(headline(record))}\n", f"bold {style}")
        text.append(formats.clean(record.verdict.summary))
        if self._settings == self._original.settings:
            text.append("\n\nThese are the run's own tolerances.", colours.faint)
        elif not self._judged.changes:
            text.append("\n\nNothing changes with these tolerances.", colours.faint)
        for said in self._judged.changes:
            text.append("\n→ ", colours.warn).append(formats.clean(said))
        for said in self._judged.undecided:
            text.append("\n? ", colours.faint).append(formats.clean(said), colours.faint)
        counts = [
            f"{sum(b.mark is mark for b in record.blocks)} {mark.value}"
            for mark in dict.fromkeys(b.mark for b in record.blocks)
        ]
        text.append(f"\n\nblocks: {', '.join(counts)}", colours.faint)
        panel = self.query_one("#tolerance-result", Static)
        panel.border_title = "With these tolerances"
        panel.update(text)
