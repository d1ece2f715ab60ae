"""Tensors as text: statistics side by side, magnitudes against fp16's limits, errors along axes, a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, isinf, isnan, sqrt

import numpy as np
from rich.text import Text

from bisect_litert.reports import formats
from bisect_litert.tui.colours import Colours
from bisect_litert.tui.patterns import axis_name, describe
from bisect_litert.tui.tensor_facts import (
    HIGH_EXPONENT,
    LOW_EXPONENT,
    AxisFacts,
    HeatMap,
    PairFacts,
    SideFacts,
)

BARS = " ▁▂▃▄▅▆▇█"
SHADES = " ·░▒▓█"
FP16_SUBNORMAL, FP16_NORMAL, FP16_LIMIT = -24, -14, 16
"""Powers of two: fp16's smallest number, its smallest with all digits, and the first that is too large."""


def statistics(facts: PairFacts, colours: Colours) -> Text:
    """Returns both tensors' statistics side by side."""
    rows: list[tuple[str, str, str]] = []
    a, b = facts.reference, facts.target
    for name in ("minimum", "maximum", "mean", "deviation", "peak", "smallest"):
        label = {"peak": "peak |x|", "smallest": "smallest |x|", "deviation": "std dev"}.get(name, name)
        rows.append((label, _four(getattr(a, name)), _four(getattr(b, name))))
    for name in ("zeros", "nans", "infinities"):
        label = {"nans": "NaN", "infinities": "infinite"}.get(name, name)
        rows.append((label, str(getattr(a, name)), str(getattr(b, name))))
    width = max(9, len(facts.truth), *(len(cell) for _, x, y in rows for cell in (x, y)))
    text = Text(no_wrap=True)
    text.append(f"{'':<13}{facts.truth:>{width}}  {'target':>{width}}\n", colours.faint)
    for label, left, right in rows:
        text.append(f"{label:<13}", colours.faint)
        news = label in ("zeros", "NaN", "infinite") and left != right
        text.append(f"{left:>{width}}  ").append(f"{right:>{width}}", f"bold {colours.bad}" if news else "")
        text.append("  ◀ differs\n" if news else "\n", colours.bad)
    text.rstrip()
    return text


def _four(value: float) -> str:
    return formats.number(value, 4)


def patterns(facts: PairFacts, colours: Colours) -> Text:
    """Returns where the target is not finite, or zero, and torch is not, in words."""
    rank, text = len(facts.shape), Text()
    total = int(np.prod(facts.shape))
    for kind, count, word in (
        ("nonfinite", facts.new_nonfinite, "NaN or infinite"),
        ("zeros", facts.new_zeros, f"zero where {facts.truth} is not"),
    ):
        if count:
            where = describe(facts.axes, rank, kind, count)
            share = formats.percent(count, total)
            text.append(f"{count} ({share}) {word}: ", f"bold {colours.bad}").append(f"{where}\n")
    if not text:
        text.append("No element is NaN, infinite or zero in the target only.", colours.faint)
    text.rstrip()
    return text


def histogram(facts: PairFacts, width: int, height: int, colours: Colours) -> Text:
    """Returns how many elements have which magnitude, torch above target, with fp16's limits drawn in."""
    low, high = _range(facts.reference, facts.target)
    bins = high - low + 1
    per = max(1, width // bins) if bins <= width else 1
    merge = ceil(bins / width)
    text = Text(no_wrap=True)
    for name, side, style in ((facts.truth, facts.reference, colours.text), ("target", facts.target, colours.accent)):
        counts = side.histogram[low - LOW_EXPONENT : high - LOW_EXPONENT + 1].astype(float)
        if merge > 1:
            counts = np.add.reduceat(counts, np.arange(0, bins, merge))
        text.append_text(_bars(counts, per, height, style, low, merge, colours))
        beside = [f"{side.zeros} zeros"] if side.zeros else []
        beside += [f"{side.nans + side.infinities} NaN or infinite"] if side.nans + side.infinities else []
        text.append("─" * (len(counts) * per) + "\n", colours.faint)
        text.append(f"{name}", f"bold {style}").append(f"  {', '.join(beside) or 'all finite, none zero'}\n", "dim")
    text.append_text(_magnitudes(low, bins, per, merge, colours))
    return text


def _range(*sides: SideFacts) -> tuple[int, int]:
    used = np.flatnonzero(sum(side.histogram for side in sides)) + LOW_EXPONENT
    low, high = (int(used[0]), int(used[-1])) if used.size else (-2, 2)
    # The limits that are near are worth seeing too.
    if high >= FP16_LIMIT - 8:
        high = max(high, FP16_LIMIT)
    if low <= FP16_NORMAL + 6:
        low = min(low, FP16_NORMAL - 1)
    if low <= FP16_SUBNORMAL + 6:
        low = min(low, FP16_SUBNORMAL - 1)
    return max(low, LOW_EXPONENT), min(max(high, low + 7), HIGH_EXPONENT)


def _limits(low: int, merge: int, bins: int) -> dict[int, str]:
    """Returns the columns of bins before which a limit lies, each with its name."""
    names = {FP16_SUBNORMAL: "6e-8", FP16_NORMAL: "6.1e-5", FP16_LIMIT: "65504"}
    return {(e - low) // merge: name for e, name in names.items() if low < e <= low + bins - 1}


def _bars(counts: np.ndarray, per: int, height: int, style: str, low: int, merge: int, colours: Colours) -> Text:
    text = Text(no_wrap=True)
    # Square roots keep a handful of outliers visible beside thousands.
    tall = np.sqrt(counts / counts.max()) * height if counts.size and counts.max() else counts
    limits = _limits(low, merge, len(counts) * merge)
    for row in range(height, 0, -1):
        for column, size in enumerate(tall):
            part = min(max(size - (row - 1), 0.0), 1.0)
            char = BARS[ceil(part * 8)] if part > 0 else " "
            first = char
            outside = (low + column * merge) >= FP16_LIMIT or (low + (column + 1) * merge) <= FP16_SUBNORMAL
            colour = colours.bad if outside else style
            if column in limits and char == " ":
                first = "┊"
            text.append(first, colours.warn if first == "┊" else colour)
            text.append(char * (per - 1), colour)
        text.append("\n")
    return text


def _magnitudes(low: int, bins: int, per: int, merge: int, colours: Colours) -> Text:
    """Returns the axis: powers of ten, and fp16's limits below them."""
    width = ceil(bins / merge) * per
    scale, marks = [" "] * width, [" "] * width
    previous = -10
    for decade in range(ceil(low * 0.30103), int((low + bins) * 0.30103) + 1):
        at = round((decade / 0.30103 - low) / merge * per)
        label = f"1e{decade}"
        if at >= previous + 2 and at + len(label) <= width:
            scale[at : at + len(label)] = label
            previous = at + len(label)
    for column, name in _limits(low, merge, bins).items():
        word = f"┊{name}"
        at = column * per
        if at + len(word) > width:
            at, word = max(0, at - len(name)), f"{name}┊"
        marks[at : at + len(word)] = word
    text = Text(no_wrap=True)
    text.append("".join(scale) + "\n", colours.faint)
    if "".join(marks).strip():
        text.append("".join(marks).rstrip()[:width], colours.warn).append("\n")
    text.append("fp16 ends at 65504, loses digits below 6.1e-5, and is zero below 6e-8", colours.faint)
    return text


def worst_elements(facts: PairFacts, rows: int, colours: Colours) -> Text:
    """Returns the elements that are off the most, with index and both values."""
    if not facts.worst:
        return Text("Every element is the same.", colours.faint)
    cells = [
        (
            formats.shape(e.index),
            _four(e.reference),
            _four(e.target),
            _four(e.target - e.reference) if not isinf(e.target) else _four(e.target),
        )
        for e in facts.worst[:rows]
    ]
    heads = ("index", facts.truth, "target", "off by")
    widths = [max(len(heads[i]), *(len(row[i]) for row in cells)) for i in range(4)]
    text = Text(no_wrap=True)
    text.append(
        "  ".join(f"{h:<{w}}" if i == 0 else f"{h:>{w}}" for i, (h, w) in enumerate(zip(heads, widths, strict=True))),
        colours.faint,
    )
    for row in cells:
        text.append("\n" + f"{row[0]:<{widths[0]}}")
        for i in (1, 2, 3):
            broken = i == 2 and row[2] in ("nan", "inf", "-inf")
            text.append(f"  {row[i]:>{widths[i]}}", f"bold {colours.bad}" if broken else "")
    return text


def along_axes(facts: PairFacts, width: int, colours: Colours) -> Text:
    """Returns a strip per axis: how far off each position is."""
    if not facts.axes:
        return Text("A single number has no axes.", colours.faint)
    text = Text(no_wrap=True)
    for axis in facts.axes:
        name = f"axis {axis.axis} {axis_name(axis.axis, len(facts.shape))} 0..{axis.length - 1}"
        level, broken, per = _grouped(axis, width)
        top = max((v for v in level if not isnan(v) and not isinf(v)), default=0.0)
        text.append(f"{name}", "bold")
        text.append(f"  worst at {_worst_position(axis)}: {formats.number(_highest(axis))}", colours.faint)
        text.append(f"  ({per} per cell)\n" if per > 1 else "\n", colours.faint)
        everywhere = all(broken)
        for value, bad in zip(level, broken, strict=True):
            # Where every position has some, they do not tell the positions apart.
            if bad and not everywhere:
                text.append("∞", f"bold {colours.bad}")
            elif isnan(value) or top == 0 or value == 0:
                text.append("·", colours.faint)
            else:
                share = min(1.0, value / top)
                text.append(BARS[max(1, ceil(share * 8))], colours.bad if share > 0.5 else colours.text)
        text.append("\n")
    text.rstrip()
    return text


def _by_nonfinite(axis: AxisFacts) -> bool:
    """Whether what is not finite tells the positions apart."""
    return bool(axis.nonfinite.any() and not axis.nonfinite.all())


def _highest(axis: AxisFacts) -> float:
    if _by_nonfinite(axis):
        return inf
    return float(np.nanmax(axis.error)) if not np.isnan(axis.error).all() else float("nan")


def _worst_position(axis: AxisFacts) -> str:
    which = axis.nonfinite if _by_nonfinite(axis) else np.where(np.isnan(axis.error), -1.0, axis.error)
    first = int(np.argmax(which)) * axis.per_bin
    return str(first) if axis.per_bin == 1 else f"{first}..{min(axis.length, first + axis.per_bin) - 1}"


def _grouped(axis: AxisFacts, width: int) -> tuple[list[float], list[bool], int]:
    """Returns the axis in at most `width` cells: the worst of each, and the positions in one cell."""
    merge = max(1, ceil(axis.error.size / max(1, width)))
    starts = np.arange(0, axis.error.size, merge)
    level = np.fmax.reduceat(axis.error, starts)
    broken = np.add.reduceat(axis.nonfinite, starts) > 0
    return level.tolist(), broken.tolist(), merge * axis.per_bin


def heat_map(heat: HeatMap | None, facts: PairFacts, colours: Colours, width: int) -> Text:
    """Returns the worst slice, shaded by error over the reference's root mean square."""
    if heat is None:
        return Text("There is nothing to map.", colours.faint)
    rank = len(facts.shape)
    index = ", ".join(":" if i is None else str(i) for i in heat.index)
    down, across = heat.axes
    text = Text(no_wrap=True)
    text.append(f"[{index}]", "bold")
    if down >= 0:
        text.append(f"  ↓ axis {down} {axis_name(down, rank)}", colours.faint)
    text.append(f"  → axis {across} {axis_name(across, rank)}\n", colours.faint)
    finite = heat.level[np.isfinite(heat.level)]
    top = float(finite.max()) if finite.size else 0.0
    label = max(3, len(str(int(heat.rows[-1])))) if heat.rows.size else 3
    # Read for a wider panel than this one: neighbours share a cell, which shows the worse of them.
    merge = ceil(heat.columns.size / max(1, width - label - 1))
    starts = np.arange(0, heat.columns.size, merge)
    columns = heat.columns[starts]
    level = np.maximum.reduceat(heat.level, starts, axis=1)
    zeroed = np.logical_and.reduceat(heat.zeroed, starts, axis=1)
    text.append(" " * (label + 1) + _column_labels(columns) + "\n", colours.faint)
    for y, first in enumerate(heat.rows):
        text.append(f"{first:>{label}} ", colours.faint)
        for x in range(len(columns)):
            text.append(*_cell(float(level[y, x]), bool(zeroed[y, x]), top, colours))
        text.append("\n")
    text.append("error/rms ", colours.faint)
    for i in range(1, len(SHADES)):
        text.append(f"{SHADES[i]}≤{formats.number(_step(top, i))} ", colours.faint)
    text.append("0 zeroed ∞ not finite", colours.faint)
    return text


def _step(top: float, i: int) -> float:
    """Shades stand for equal steps of the square root, so that small errors still differ from none."""
    return top * (i / (len(SHADES) - 1)) ** 2


def _cell(level: float, zeroed: bool, top: float, colours: Colours) -> tuple[str, str]:
    if isinf(level):
        return "∞", f"bold {colours.bad}"
    if zeroed:
        return "0", f"bold {colours.warn}"
    if top == 0 or level == 0:
        return " ", colours.faint
    shade = min(len(SHADES) - 1, max(1, ceil(sqrt(level / top) * (len(SHADES) - 1))))
    return SHADES[shade], colours.bad if shade >= 4 else colours.text


def _column_labels(columns: np.ndarray) -> str:
    cells = [" "] * len(columns)
    for x in range(0, len(columns), 10):
        label = str(int(columns[x]))
        if x + len(label) <= len(columns):
            cells[x : x + len(label)] = label
    return "".join(cells)


def all_runs(rows: Sequence[tuple[str, str, str, str, str, str]], colours: Colours) -> Text:
    """Returns the stored errors of every run at a block."""
    heads = ("run", "rel L2", "local", "corr", "n-fin", "zeros")
    widths = [max(len(h), *(len(row[i]) for row in rows)) for i, h in enumerate(heads)] if rows else []
    if not rows:
        return Text("No run has a tensor here.", colours.faint)
    text = Text(no_wrap=True)
    for row in (heads, *rows):
        line = "  ".join(
            f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        text.append(line + "\n", colours.faint if row is heads else "")
    text.rstrip()
    return text
