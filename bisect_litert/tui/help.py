"""The keys, and what the columns and marks mean."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from bisect_litert.tui.keys import PAGER

KEYS = (
    ("Everywhere", (
        ("1 to 6", "the tabs: overview, block, ops, evidence, compare, tolerances"),
        ("y  Y", "copy the cell, or what the tab offers; copy the summary as Markdown"),
        ("s", "save what you see as SVG or PNG"),
        ("o", "open the run folder (report, plot, logs, tensors)"),
        ("ctrl+p", "command palette: tabs, blocks by name, themes"),
        ("t", "light or dark"),
        ("escape", "back to the overview, then to the list of runs"),
        ("tab", "the next part of the screen"),
        ("j k g G", "down, up, first, last; h and l left and right, as the arrows"),
        ("q", "quit"),
    )),
    ("Overview", (
        ("↑ ↓ ← →", "move over blocks and columns; in the plot ← → moves over blocks"),
        ("enter", "open the block"),
        ("/", "filter by glob (* within a level, ** across) or by part of a name; escape shows all"),
        ("n  p", "next and previous culprit"),
        ("m", "only blocks of the next mark"),
        ("x", "sort by this column; again turns it round, a third time goes back to the data flow"),
        ("+ - 0", "zoom the plot in, out, show all; the wheel zooms too, dragging moves"),
    )),
    ("Block, ops", (
        ("n  p", "next and previous block; in ops, culprit"),
        ("v", "the next tensor of a block with several"),
        ("c", "to the guilty op"),
    )),
    ("Tolerances", (("↑ ↓", "double or halve"), ("ctrl+r", "the run's own tolerances"))),
)  # fmt: skip
WORDS = (
    ("rel L2", "how far a block's output is from PyTorch's: high at a fault and ever after (cumulative)"),
    ("local", "the same with PyTorch computing the block from the GPU's own inputs: high only at the fault"),
    ("expected", "what rounding every tensor of the block to fp16 costs"),
    ("ratio", "local over expected: about 1 to 4 is honest fp16"),
    ("ampl.", "error after the block over error before it"),
    ("corr", "correlation, because people quote it; it never decides"),
    ("✗ culprit", "wrong at its own inputs"),
    ("↓ after", "in line by itself, wrong because of a culprit before it"),
    ("! note", "out of line, but no model output suffers"),
    ("○ untapped", "its output is no tensor of the graph"),
    ("? unknown", "not measured, or only at inputs that were wrong or missing"),
)


class HelpScreen(ModalScreen[None]):
    """Keys and words."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "Close"),
        *PAGER,
    ]

    def compose(self) -> ComposeResult:
        """Lays out the text."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for title, rows in (*KEYS, ("Words", WORDS)):
            grid.add_row(Text.assemble((title, "bold underline")), "")
            for head, meaning in rows:
                grid.add_row(Text(head, "bold"), Text(meaning))
            grid.add_row("", "")
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Keys and words"
            dialog.border_subtitle = "escape closes"
            yield Static(grid)
