"""What is written around the plot: its legend, and the selected block's numbers."""

from __future__ import annotations

from math import isnan

from rich.text import Text

from bisect_litert.block_record import BlockResult
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import local_on_target, on_target
from bisect_litert.tui.colours import Colours


def legend(colours: Colours, width: int, *, both: bool, broken: bool) -> Text:
    """Returns the legend, in short words where the long ones do not fit.

    Args:
        colours: The theme's.
        width: Cells there are.
        both: Whether cumulative and local error share a mark somewhere.
        broken: Whether something is not finite.
    """
    entries = [
        ("●", colours.text, "cumulative", "total", True),
        ("◆", colours.accent, "local", "local", True),
        ("◈", f"bold {colours.accent}", "both", "both", both),
        ("⠒⠒", colours.faint, "expected", "exp.", True),
        ("✗", f"bold {colours.bad}", "culprit", "culprit", True),
        ("∞", f"bold {colours.warn}", "non-finite", "n-fin", broken),
    ]
    text = Text()
    for title, short in (("Error by depth  ", False), ("Error  ", False), ("", False), ("", True)):
        text = Text(title, "bold")
        for symbol, style, word, brief, wanted in entries:
            if wanted:
                text.append(symbol, style).append(f" {brief if short else word} ")
        if text.cell_len <= width:
            break
    return text


def readout(record: RunRecord, block: BlockResult) -> Text:
    """Returns the selected block's numbers on a line."""
    total, local = on_target(record, block), local_on_target(record, block)
    parts = [
        ("cumulative", total.relative_l2 if total else float("nan")),
        ("local", local.relative_l2 if local else float("nan")),
        ("expected", block.expected),
        ("ratio", block.ratio),
    ]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{formats.SYMBOLS[block.mark]} {formats.clean(block.name)}", "bold")
    for name, value in parts:
        text.append(f"  {name} ", "dim").append("-" if isnan(value) else formats.number(value))
    if total and total.new_nonfinite:
        text.append(f"  ∞ {formats.count(total.new_nonfinite)} not finite", "bold")
    return text
