"""Text that Markdown shows as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bisect_litert.reports import formats


def row(cells: Iterable[str]) -> str:
    """Returns a table row of cells that are Markdown already."""
    # GitHub splits cells before it reads code spans, so a pipe is escaped there too, and only there.
    escaped = [re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells]
    return f"| {' | '.join(escaped)} |"


def text(prose: str) -> str:
    """Returns prose that Markdown shows as it is."""
    flat = " ".join(formats.clean(prose).split())
    # Underscores within words are left alone: GitHub does not take them for emphasis, and escapes would be noise.
    special = r"(?<![^\W_])_+|_+(?![^\W_])|[\\`*|<>\[\]]"
    return re.sub(special, lambda match: "".join("\\" + char for char in match[0]), flat)


def code(word: str) -> str:
    """Returns a code span holding `word`, with a fence longer than any in it."""
    flat = " ".join(formats.clean(word).split())
    fence = "`" * (max((len(run) for run in re.findall("`+", flat)), default=0) + 1)
    pad = " " if flat.startswith("`") or flat.endswith("`") else ""
    return f"{fence}{pad}{flat}{pad}{fence}"
