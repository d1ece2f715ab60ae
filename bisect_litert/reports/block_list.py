"""The list that `bisect-litert blocks` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bisect_litert.reports import formats
from bisect_litert.reports.names import cut_line

MOST_CLASS = 24
LEAST_SHAPE = 10
"""Cells that shapes get where they can, at the cost of class names: "1x16x64"."""


class BlockRow(Protocol):
    """One module that a forward calls; `blocks.BlockRow` is one, and imports torch."""

    @property
    def name(self) -> str:
        """Module path."""

    @property
    def class_name(self) -> str:
        """Its class."""

    @property
    def calls(self) -> int:
        """How often one forward calls it."""

    @property
    def shapes(self) -> tuple[str, ...]:
        """Its output tensors."""

    @property
    def selected(self) -> bool:
        """Whether a run takes it as a block."""


def render(lines: Sequence[BlockRow], console: Console) -> None:
    """Prints one line a block: name, class, calls, output shapes, and whether a run takes it.

    Names are printed whole, because they are there to be copied; what does not fit is cut from the shapes.
    """
    ascii_only = console.options.ascii_only
    names = [formats.clean(line.name, ascii_only) for line in lines]
    classes = [formats.clean(line.class_name, ascii_only)[:MOST_CLASS] for line in lines]
    name_width, class_width = max(map(cell_len, ["block", *names])), max(map(cell_len, ["class", *classes]))
    room = console.width - name_width - class_width - len("*     calls  ")
    if room < LEAST_SHAPE:  # a letter of each would tell nothing
        shown = min(class_width, max(len("class"), class_width + room - LEAST_SHAPE))
        class_width, classes = shown, [cut_line(Text(name), shown, ascii_only).plain for name in classes]
    _print(console, Text(f"  {_pad('block', name_width)}  {_pad('class', class_width)}  calls  output", "dim"))
    for line, name, class_name in zip(lines, names, classes, strict=True):
        star = "* " if line.selected else "  "
        shapes = formats.clean(", ".join(line.shapes), ascii_only) or "-"
        text = f"{star}{_pad(name, name_width)}  {_pad(class_name, class_width)}  {line.calls:>5}  {shapes}"
        _print(console, Text(text))
    if any(line.selected for line in lines):
        _print(console, Text("* what a run takes as its blocks", "dim"))


def _print(console: Console, text: Text) -> None:
    console.print(cut_line(text, console.width, console.options.ascii_only), soft_wrap=True)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
