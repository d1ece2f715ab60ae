"""Long module paths in little room, so that blocks can still be told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

DOTS = "…"


def shorten(name: str, width: int) -> str:
    """Returns `name` in at most `width` cells, cut in the middle."""
    if cell_len(name) <= width:
        return name
    keep = width - cell_len(DOTS)
    if keep < 2:
        return set_cell_size(name, max(width, 0))
    # The end carries the index and the leaf's name, so it gets the larger half.
    head = set_cell_size(name, keep * 2 // 5).rstrip()
    tail = name
    while cell_len(head) + cell_len(tail) > keep:
        tail = tail[1:]
    return head + DOTS + tail


def cut_line(line: Text, width: int, ascii_only: bool) -> Text:
    """Returns `line` in at most `width` cells; rich's own ellipsis is a character that ASCII cannot write."""
    if line.cell_len <= width:
        return line
    dots = "..." if ascii_only else DOTS
    cut = line.copy()
    cut.truncate(width - cell_len(dots))
    cut.append(dots)
    return cut


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Returns every name in at most `width` cells, as distinct as they were wherever that is possible.

    Tried in turn: a cut in the middle, without the path they share (or the part of it for which there is no room),
    without the endings they share too, and initials for all but the last part. Among equally distinct ones, that with
    the fewest cuts through a word wins.
    """
    long = [name for name in names if cell_len(name) > width]
    if not long:
        return list(names)
    start, end = _shared(long), _shared([_reversed(name) for name in long])

    def fits(first: int) -> bool:
        return all(cell_len(DOTS + ".".join(name.split(".")[first:])) <= width for name in long)

    cut = next((first for first in range(1, start) if fits(first)), start)

    def no_start(name: str) -> str:
        return DOTS + ".".join(name.split(".")[cut:]) if start else name

    def core(name: str, first: int = start) -> str:
        parts = name.split(".")
        middle = ".".join(parts[first : len(parts) - end])
        return (DOTS if first else "") + middle + (DOTS if end else "") if middle else name

    def core_and_parent(name: str) -> str:
        return core(name, max(0, start - 1))

    def initials(name: str) -> str:
        *path, last = name.split(".")
        return ".".join([*(part if part.isdigit() else part[:1] for part in path), last])

    ways: list[Callable[[str], str]] = [str, no_start, core_and_parent, core, initials]
    best, best_score = list(names), (0, 0)
    for way in ways:
        wanted = [name if cell_len(name) <= width else way(name) for name in names]
        found = [shorten(name, width) for name in wanted]
        score = (len(set(found)), sum(a == b for a, b in zip(wanted, found, strict=True)))
        if score > best_score:
            best, best_score = found, score
    return best


def _shared(names: Sequence[str]) -> int:
    """Returns how many leading path parts all `names` have in common, always leaving one."""
    parts = [name.split(".") for name in names]
    most = min(map(len, parts)) - 1
    return next((i for i in range(most) if len({p[i] for p in parts}) > 1), most)


def _reversed(name: str) -> str:
    return ".".join(reversed(name.split(".")))
