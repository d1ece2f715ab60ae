"""The table of blocks for a terminal: one line a block, healthy stretches folded, never wrapped.

The lines are laid out here rather than by rich.Table, because which columns may go, and in which order, is ours to say,
and because a folded stretch is one line across all columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isnan

from rich.cells import cell_len
from rich.text import Text

from bisect_litert.block_record import BlockResult, Comparison
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten_all
from bisect_litert.reports.outcome import local_on_target, on_target
from bisect_litert.vocabulary import Mark, Residency

FOLD_ABOVE = 24
NEIGHBOURS = 2
SHORTEST_FOLD = 4
NOTES_KEPT = 8
NAME_MINIMUM = 14
GAP = "  "

_STYLES = {
    Mark.OK: "",
    Mark.CULPRIT: "bold red",
    Mark.AFTER: "dim",
    Mark.NOTE: "yellow",
    Mark.UNTAPPED: "dim",
    Mark.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    short: str
    """Title where the table is narrow."""
    cell: Callable[[RunRecord, BlockResult], str]
    rank: int
    """The highest goes first when the terminal is too narrow; 0 always stays."""


def _cumulative(write: Callable[[Comparison], str]) -> Callable[[RunRecord, BlockResult], str]:
    def cell(record: RunRecord, block: BlockResult) -> str:
        comparison = on_target(record, block)
        return "-" if comparison is None else write(comparison)

    return cell


def _local(record: RunRecord, block: BlockResult) -> str:
    comparison = local_on_target(record, block)
    return "-" if comparison is None else formats.number(comparison.relative_l2)


def _known(value: float) -> str:
    return "-" if isnan(value) else formats.number(value)


def _expected(_: RunRecord, block: BlockResult) -> str:
    return _known(block.expected)


_COLUMNS = (
    _Column("corr", "corr", _cumulative(lambda c: formats.correlation(c.correlation)), 4),
    _Column("rel L2", "rel L2", _cumulative(lambda c: formats.number(c.relative_l2)), 0),
    _Column("local", "local", _local, 2),
    _Column("expected", "exp.", _expected, 8),
    _Column("ratio", "ratio", lambda _, b: _known(b.ratio), 0),
    _Column("amplified", "ampl.", lambda _, b: _known(b.amplification), 9),
    _Column("peak |ref|", "peak", _cumulative(lambda c: formats.number(c.reference_peak)), 6),
    _Column("non-finite", "n-fin", _cumulative(lambda c: formats.count(c.nonfinite)), 3),
    _Column("on", "on", lambda _, b: formats.PLACES[b.residency], 1),
    _Column("zeros", "zeros", _cumulative(formats.share_of_zeros), 5),
)
_EXTRA_RANK = 8
"""Columns from this rank on are shown only where no name has to be shortened for them."""


def block_lines(record: RunRecord, width: int, *, verbose: bool = False, ascii_only: bool = False) -> Iterator[Text]:
    """Yields the table's header and lines, none wider than `width` cells (at 40 cells or more).

    Args:
        record: The run.
        width: Cells there are.
        verbose: One line for every block, whatever their number.
        ascii_only: Leave room for what the symbols in names become in ASCII.
    """
    places = {block.residency for block in record.blocks}
    # Where all of it ran in one place the header has said so already.
    columns = [c for c in _COLUMNS if c.title != "on" or places & {Residency.CPU, Residency.MIXED}]
    marks = {mark: f"{formats.SYMBOLS[mark]} {mark.value}" for mark in {block.mark for block in record.blocks}}
    names = [formats.clean(block.name, ascii_only) for block in record.blocks]
    longest = max(10, *map(cell_len, names))
    stretches = fold(record.blocks, verbose=verbose)
    shown = [stretch[0] for stretch in stretches if len(stretch) == 1]
    cells = {c.title: {b.order: c.cell(record, b) for b in shown} for c in columns}
    room = width - max(map(cell_len, marks.values()))
    layout, name_width = _layout(
        columns, {title: max(map(len, c.values())) for title, c in cells.items()}, longest, room
    )
    short = dict(zip((b.order for b in record.blocks), _shortened(names, name_width, ascii_only), strict=True))
    head = GAP.join([_pad("block", name_width), *(f"{title:>{w}}" for _, title, w in layout), "mark"])
    yield Text(head, "dim")
    for stretch in stretches:
        if len(stretch) > 1:
            yield Text(_folded(stretch), "dim italic")
            continue
        (block,) = stretch
        values = [f"{cells[column.title][block.order]:>{w}}" for column, _, w in layout]
        name = _pad(short[block.order], name_width)
        style = _STYLES[block.mark]
        line = GAP.join([name, *values]) + GAP
        yield Text.assemble((line, style if block.mark is not Mark.NOTE else ""), (marks[block.mark], style))


def fold(blocks: tuple[BlockResult, ...], *, verbose: bool = False) -> list[tuple[BlockResult, ...]]:
    """Returns stretches in order: of one block where it is shown, of several where they are folded into one line.

    First and last, culprits with two neighbours on either side, and a handful of notes always stand alone.
    """
    if verbose or len(blocks) <= FOLD_ABOVE:
        return [(block,) for block in blocks]
    culprits = [i for i, block in enumerate(blocks) if block.mark is Mark.CULPRIT]
    notes = [i for i, block in enumerate(blocks) if block.mark is Mark.NOTE]
    keep = {0, len(blocks) - 1, *(notes if len(notes) <= NOTES_KEPT else ())}
    for index in culprits:
        keep.update(range(max(0, index - NEIGHBOURS), min(len(blocks), index + NEIGHBOURS + 1)))
    stretches: list[tuple[BlockResult, ...]] = []
    start = 0
    while start < len(blocks):
        stop = start + 1
        while start not in keep and stop < len(blocks) and stop not in keep:
            stop += 1
        hidden = blocks[start:stop]
        stretches += [hidden] if len(hidden) >= SHORTEST_FOLD else [(block,) for block in hidden]
        start = stop
    return stretches


def _folded(stretch: tuple[BlockResult, ...]) -> str:
    """Returns "  … 41 blocks in line, ratio ≤ 2.1", or the counts where they are not all in line."""
    words = {
        Mark.OK: "in line",
        Mark.AFTER: "after a culprit, in line by themselves",
        Mark.NOTE: "noted",
        Mark.UNTAPPED: "untapped",
        Mark.UNKNOWN: "unknown",
    }
    counts = [(mark, sum(b.mark is mark for b in stretch)) for mark in words]
    present = [(mark, n) for mark, n in counts if n]
    if len(present) == 1:
        text = f"{len(stretch)} blocks {words[present[0][0]]}"
    else:
        short = {**words, Mark.AFTER: "after a culprit"}
        text = f"{len(stretch)} blocks: " + ", ".join(f"{n} {short[mark]}" for mark, n in present)
    ratio = formats.worst_ratio(stretch)
    return f"… {text}" + ("" if isnan(ratio) else f", ratio ≤ {formats.number(ratio)}")


def _layout(
    columns: list[_Column], widths: dict[str, int], longest: int, room: int
) -> tuple[list[tuple[_Column, str, int]], int]:
    """Chooses the columns, each with its title and width, and the width left for names."""
    ranked = sorted(columns, key=lambda c: c.rank)
    while True:
        for long_titles in (True, False):
            titles = [(c, c.title if long_titles else c.short) for c in columns if c in ranked]
            layout = [(c, title, max(len(title), widths[c.title])) for c, title in titles]
            left = room - sum(w for _, _, w in layout) - len(GAP) * (len(layout) + 1)
            if ranked[-1].rank >= _EXTRA_RANK and not long_titles:
                continue
            wanted = longest if long_titles else min(longest, NAME_MINIMUM)
            if left >= wanted or ranked[-1].rank == 0:
                return layout, max(6, min(left, longest))
        ranked.pop()


def _shortened(names: list[str], width: int, ascii_only: bool) -> list[str]:
    # In ASCII the dots take three cells where they took one, up to twice in a name.
    found: list[str] = []
    for cells in range(width, max(width - 5, 1), -1):
        found = [formats.clean(name, ascii_only) for name in shorten_all(names, cells)]
        if max(map(cell_len, found)) <= width:
            break
    return found


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
