"""Blocks whose value no tensor of a shipped file holds because the file computes another one: what follows tells.

From the block on that a conversion changed, no tensor holds what PyTorch has. But let PyTorch go on from the right
tensor, and it comes to the file's own outputs, which nothing else makes it do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bisect_litert.files.port_matching import ways
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare
from bisect_litert.measuring.readings import Force, Tap
from bisect_litert.taps import tapping
from bisect_litert.taps.tapper import Layout
from bisect_litert.vocabulary import TapOrigin

CLOSE = 1e-3
"""Relative L2 difference between PyTorch's continuation and the file's output that other kernels explain."""
MAX_TRIED, MAX_FORWARDS = 12, 96
"""Tensors that are tried for one block, and for all of them."""


def follow(
    graph: Graph,
    taps: Sequence[Tap],
    values: Mapping[int, np.ndarray],
    force: Force,
    wanted: Mapping[str, np.ndarray],
) -> tuple[Tap, ...]:
    """Gives partners to blocks that have none.

    Args:
        graph: The file.
        taps: In execution order.
        values: CPU values of its tensors, by index, as real numbers.
        force: Runs PyTorch with values in place of blocks' outputs, by tap key.
        wanted: The file's outputs that PyTorch's are not, in PyTorch's layout, by PyTorch's label.
    """
    absent = set(tapping.missing(taps)) if wanted else set()
    held = {tap.tensor for tap in taps}
    found: dict[int, tuple[str, Layout]] = {}
    """By tensor."""
    left = MAX_FORWARDS
    # From the end: of several blocks that a tensor stands for (a convolution and its activation are one op) it is the
    # last one's, and what lies before a block lies before its tensor.
    for tap in reversed(taps):
        for tensor, layout in _candidates(graph, tap, values, held) if tap.key in absent else ():
            if not left:
                break
            left -= 1
            after = force({tap.key: layout.to_torch(values[tensor])}, _ignore).outputs
            if any(_is(after.get(label), value) for label, value in wanted.items()):
                found[tensor] = tap.key, layout
                held.add(tensor)
                break
    partners = {key: (tensor, layout) for tensor, (key, layout) in found.items()}
    return tuple(
        replace(tap, tensor=partners[tap.key][0], layout=partners[tap.key][1], origin=TapOrigin.GRAPH)
        if tap.key in partners
        else tap
        for tap in taps
    )


def _ignore(key: str, computed: np.ndarray) -> None:
    """Only what comes out in the end is asked for."""
    del key, computed


def _candidates(
    graph: Graph, tap: Tap, values: Mapping[int, np.ndarray], held: set[int]
) -> Iterator[tuple[int, Layout]]:
    """Tensors that could be a block's output, those first that are named after it and the last of these first."""
    shape = np.broadcast_to(np.float32(0), tap.shape)
    fitting = [
        t
        for t in sorted(graph.computed, reverse=True)
        if t in values and t not in held and graph.tensors[t].is_real and graph.tensors[t].size == shape.size
    ]
    fitting.sort(key=lambda t: _unlike(graph.tensors[t].name, tap))
    tried = 0
    for t in fitting:
        for layout in ways(shape, graph.tensors[t]):
            if tried == MAX_TRIED:
                return
            tried += 1
            yield t, layout


def _unlike(tensor: str, tap: Tap) -> int:
    """How little a tensor's name has of a block's: 0 for the last level of its path, which is in no name if it is a
    number, 1 for its class where that is what the name ends in, else 2."""
    level = tap.module.rpartition(".")[2]
    if not level.isdigit() and re.search(rf"(?<![A-Za-z0-9]){re.escape(level)}(?![A-Za-z0-9])", tensor):
        return 0
    ends = [part.rpartition("/")[2].rpartition(".")[2] for part in tensor.split(";")]
    return 1 if any(re.fullmatch(rf"{re.escape(tap.class_name)}(_\w+)?", end) for end in ends) else 2


def _is(seen: np.ndarray | None, value: np.ndarray) -> bool:
    if seen is None or seen.shape != value.shape or value.dtype.kind != "f":
        return False
    found = compare(reference=value, target=seen)
    return found.finite_agreement and found.relative_l2 <= CLOSE
