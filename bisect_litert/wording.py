"""Words that several pages have in common."""

from __future__ import annotations

from collections.abc import Iterable


def some_of(names: Iterable[str], most: int) -> str:
    """Returns "a, b, c and 4 more"."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
