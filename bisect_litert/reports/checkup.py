"""A checkup on a terminal: one line per check with a mark, and under what is wrong what puts it right."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from bisect_litert.records.checkup import Check, Checkup, State
from bisect_litert.reports import formats

NAME_CELLS = 15
_MARKS = {State.OK: ("✓", "green"), State.NOTE: ("!", "yellow"), State.BAD: ("✗", "bold red")}


def render_check(check: Check, console: Console) -> None:
    """Prints one check."""
    mark, style = _MARKS[check.state]
    _line(console, Text.assemble((mark, style), " ", (f"{check.name:<{NAME_CELLS}} ", "bold")), check.said, "")
    if check.fix:
        _line(console, Text(" " * (NAME_CELLS + 3)), f"→ {check.fix}", "cyan" if check.state is State.BAD else "dim")


def render_end(checkup: Checkup, console: Console) -> None:
    """Prints what it comes to."""
    bad = [check.name for check in checkup.checks if check.state is State.BAD]
    text = Text(f"{formats.plural(len(bad), 'thing')} to put right: {', '.join(bad)}.", "bold red")
    _line(console, Text(), text.plain if bad else "All is fine.", "bold red" if bad else "bold green")


def _line(console: Console, head: Text, said: str, style: str) -> None:
    """Prints text in a column of its own behind the head; a command stays in one piece, so that it can be copied."""
    ascii_only = console.options.ascii_only
    body = Text(formats.clean(said, ascii_only), style)
    width = max(40, console.width - head.cell_len)
    whole = "pip install" in said or " --runtime " in said
    for index, line in enumerate([body] if whole else body.wrap(console, width)):
        line.rstrip()
        start = Text(formats.clean(head.plain, ascii_only)) if ascii_only else head
        console.print(Text.assemble(start if index == 0 else " " * head.cell_len, line), soft_wrap=True)
