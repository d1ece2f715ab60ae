"""divergence.png: error by depth on a log axis, readable at 800 px, in greyscale, and with up to hundreds of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from bisect_litert.block_record import Comparison
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten, shorten_all
from bisect_litert.reports.outcome import (
    cause_words,
    headline,
    is_emulated,
    local_on_target,
    on_target,
    target_words,
    truth_name,
)

WIDTH, HEIGHT, DPI = 8.0, 5.0, 200
"""Inches and dots per inch: 1600 px wide, so that it stays sharp where GitHub shows it at 800."""
NAME_CELLS = 18
LABEL_CELLS = 26
MOST_TICKS = 32
MOST_LABELS = 6
FLOOR = 1e-9
"""The smallest error drawn; below it, exact zero included, a marker stands on the bottom edge."""


def load() -> None:
    """Imports what `save` needs and lets matplotlib find its fonts, so that a later `save` is quick."""
    from matplotlib import font_manager
    from matplotlib.backends import backend_agg
    from matplotlib.figure import Figure

    font_manager.findfont("DejaVu Sans")
    backend_agg.FigureCanvasAgg(Figure())


def save(record: RunRecord, path: Path) -> None:
    """Draws the run's errors by depth.

    Args:
        record: The run.
        path: The PNG to write.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Not pyplot: this also runs inside programs that have a figure of their own open.
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    blocks = record.blocks
    series = [
        _Series("cumulative", [_value(on_target(record, b)) for b in blocks], "#1b1b1b", "-", "o"),
        _Series("local", [_value(local_on_target(record, b)) for b in blocks], "#c2410c", "--", "s"),
        # Its marker is small: it shows where a value stands alone, between blocks whose cost is not known.
        _Series("expected", [b.expected for b in blocks], "#6b8fb5", ":", "."),
    ]
    low, high = _limits(series)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_xlim(-0.6, max(len(blocks), 1) - 0.4)
    _mark_culprits(record, axes)
    for line in series:
        _draw(line, axes, low, high)
    _mark_nonfinite(record, axes)
    _name_ticks([formats.clean(b.name) for b in blocks], axes)
    # Not the name of its machine: a bundle holds the picture, and no text can be cut out of one.
    adapter = "" if is_emulated(record) else record.placement.adapter
    target = target_words(record) + (f", {shorten(formats.clean(adapter), 50)}" if adapter else "")
    axes.set_ylabel(f"relative L2 error against {truth_name(record)}")
    title = f"{shorten(formats.clean(record.model), 40)}: {shorten(formats.clean(headline(record)), 60)}"
    # Names may hold dollar signs, which are no mathematics.
    axes.set_title(f"{title}\nagainst {truth_name(record)}: {target}".replace("$", r"\$"), fontsize=10.5, loc="left")
    axes.grid(axis="y", which="major", color="#d9d9d9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False, handlelength=2.4)
    figure.savefig(path, format="png", metadata={"Software": "bisect-litert"})


class _Series:
    """One line of the plot; values may be nan (unknown) or inf (nothing finite to compare)."""

    def __init__(self, label: str, values: Sequence[float], colour: str, dashes: str, marker: str) -> None:
        self.label = label
        self.values = values
        self.colour = colour
        self.dashes = dashes
        self.marker = marker


def _value(comparison: Comparison | None) -> float:
    return float("nan") if comparison is None else comparison.relative_l2


def _limits(series: Sequence[_Series]) -> tuple[float, float]:
    """Returns the y range: whole decades around everything drawable, with room above for the culprits' names."""
    from math import ceil, floor, log10

    drawn = [v for line in series for v in line.values if isfinite(v) and v > FLOOR]
    low, high = (min(drawn), max(drawn)) if drawn else (1e-5, 1e-2)
    # One decade of room at the top holds the non-finite markers and the labels.
    return 10.0 ** floor(log10(low) - 0.15), 10.0 ** (ceil(log10(high) + 0.1) + 1)


def _draw(line: _Series, axes: Any, low: float, high: float) -> None:
    points = [v if isfinite(v) and v > low else float("nan") for v in line.values]
    small = len(points) > 60
    # Hundreds of markers would hide the dashes that tell the lines apart.
    marker = line.marker if len(points) <= 120 else ""
    axes.plot(
        range(len(points)),
        points,
        linestyle=line.dashes,
        marker=marker or None,
        color=line.colour,
        label=line.label,
        linewidth=1.2 if small else 1.6,
        markersize=2.2 if small else 4.5,
        # Cumulative and local coincide in the first blocks: the hollow square lets the dot show through.
        markerfacecolor=line.colour if line.marker == "o" else "white",
        zorder=3,
    )
    exact = [i for i, v in enumerate(line.values) if not isnan(v) and v <= low]
    if exact:
        # Named once, by the first line that has any.
        label = None if "exactly zero" in axes.get_legend_handles_labels()[1] else "exactly zero"
        style = {"color": line.colour, "clip_on": False, "markersize": 5, "linestyle": "none", "zorder": 4}
        axes.plot(exact, [low] * len(exact), marker="v", label=label, **style)


def _mark_nonfinite(record: RunRecord, axes: Any) -> None:
    """Puts a marker on the top edge where the target is not finite and torch is, or nothing is left to compare."""
    hit = []
    for index, block in enumerate(record.blocks):
        total = on_target(record, block)
        if total and (total.new_nonfinite or not isfinite(total.relative_l2)):
            hit.append(index)
    if hit:
        axes.plot(
            hit,
            [1.0] * len(hit),
            linestyle="none",
            marker="X",
            color="#1b1b1b",
            markeredgecolor="white",
            markeredgewidth=0.5,
            markersize=8 if len(record.blocks) <= 60 else 5,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            zorder=6,
            label="NaN or infinite",
        )


def _mark_culprits(record: RunRecord, axes: Any) -> None:
    """Shades each culprit's column, with hatching that survives greyscale, and names the first few."""
    short = shorten_all([formats.clean(block.name) for block in record.blocks], LABEL_CELLS)
    at = {block.name: index for index, block in enumerate(record.blocks)}
    found = [(at[c.block], c) for c in record.culprits if c.block in at]
    total = max(len(record.blocks), 1)
    half = max(0.4, total / 200)
    for number, (index, _) in enumerate(found):
        axes.axvspan(
            index - half,
            index + half,
            facecolor="#f3d9cc",
            edgecolor="#b08070",
            hatch="////",
            linewidth=0,
            label="culprit" if number == 0 else None,
            zorder=0,
        )
    for number, (index, culprit) in enumerate(found[:MOST_LABELS]):
        right = index > total * 0.6
        words = f"{short[index]}: {cause_words(culprit.cause, culprit.kind)}"
        axes.annotate(
            words.replace("$", r"\$"),
            xy=(index + (-half if right else half), 0.955 - 0.05 * number),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-4 if right else 4, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top",
            fontsize=8.5,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            zorder=7,
        )


def _name_ticks(names: Sequence[str], axes: Any) -> None:
    step = -(-len(names) // MOST_TICKS) if names else 1
    places = list(range(0, len(names), step))
    short = shorten_all(names, NAME_CELLS)
    flat = len(names) <= 8 and max((len(short[i]) for i in places), default=0) <= 9
    axes.set_xticks(places)
    axes.set_xticklabels(
        [short[i].replace("$", r"\$") for i in places],
        rotation=0 if flat else 90,
        fontsize=8.5 if len(places) <= 24 else 7.5,
    )
    if step > 1:
        axes.set_xlabel(f"{len(names)} blocks in execution order, every {_ordinal(step)} named", fontsize=8.5)


def _ordinal(n: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th") if n % 100 not in (11, 12, 13) else "th"
    return f"{n}{suffix}"
