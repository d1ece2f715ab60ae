"""Where elements are broken, in words: "rows 3 and 5", "every channel from 32"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisect_litert.tui.tensor_facts import AxisFacts

MOST_NAMED = 4

_AXES = {
    1: ("element",),
    2: ("row", "channel"),
    3: ("batch", "row", "channel"),
    4: ("batch", "channel", "row", "column"),
}


def axis_name(axis: int, rank: int) -> str:
    """Returns what PyTorch's models usually keep on an axis: "channel", or "index" where there is no custom."""
    return _AXES.get(rank, ("index",) * rank)[axis]


def describe(axes: Sequence[AxisFacts], rank: int, kind: str, total: int) -> str:
    """Returns where along the axes the elements of a kind sit, "" where there are none.

    Args:
        axes: The tensor's axes longer than one.
        rank: Its number of axes.
        kind: "nonfinite" or "zeros".
        total: How many elements of that kind there are.
    """
    if not total:
        return ""
    found = []
    for axis in axes:
        counts: np.ndarray = getattr(axis, kind)
        hit = np.flatnonzero(counts)
        if axis.per_bin > 1 or not hit.size or hit.size == axis.length:
            continue
        # A few scattered elements touch few positions of every axis; only whole positions make a pattern.
        whole = bool((counts[hit] == axis.elements).all())
        if whole or hit.size <= axis.length // 2:
            words = _places(hit, axis.length, axis_name(axis.axis, rank))
            found.append((not whole, f"{'all of ' if whole else 'only in '}{words} (axis {axis.axis})"))
    if not found:
        return "spread over all positions"
    found.sort(key=lambda pair: pair[0])
    if not found[0][0]:
        return found[0][1]
    return ", ".join(words for _, words in found)


def _places(hit: np.ndarray, length: int, name: str) -> str:
    plural = f"{name}es" if name.endswith(("x", "ch")) else f"{name}s"
    if hit.size == 1:
        return f"{name} {hit[0]}"
    steps = np.diff(hit)
    first, last = int(hit[0]), int(hit[-1])
    if (steps == 1).all():
        if last == length - 1:
            return f"every {name} from {first}"
        return f"every {name} up to {last}" if first == 0 else f"{plural} {first} to {last}"
    if hit.size <= MOST_NAMED:
        return f"{plural} {', '.join(map(str, hit[:-1]))} and {last}"
    step = int(steps[0])
    if (steps == step).all():
        return f"every {step}{_ordinal(step)} {name} from {first}" + ("" if last + step >= length else f" to {last}")
    return f"{hit.size} of {length} {plural}, {first} to {last}"


def _ordinal(n: int) -> str:
    return {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
