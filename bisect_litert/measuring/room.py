"""How much of the temporary folder the runs of one model take at one time, known before they start."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bisect_litert.errors import DiskFullError
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import STRETCHES
from bisect_litert.measuring.readings import Forward


def needed(taps: Sequence[int], tensors: int, budget: int) -> int:
    """Returns bytes; what the reference takes is there already.

    Args:
        taps: Bytes of each tap.
        tensors: Bytes of all that the graph's ops write.
        budget: Bytes of taps that one run may return.
    """
    total, stretch = sum(taps), max([budget // STRETCHES, *taps])
    # Every tensor of a small graph; of a large one the stretches that ran last, and what they hand on.
    looked_at = tensors if tensors <= budget else 3 * stretch
    # The GPU's taps are kept, for the search; those of the CPU's runs only where they are small.
    kept = total + 3 * stretch if total > budget // STRETCHES else STRETCHES * total
    return looked_at + kept


def check(folder: Path, graph: Graph, truth: Forward | None, budget: int) -> None:
    """Looks whether a folder has room for the runs of a graph.

    Args:
        folder: Where the files go.
        graph: The graph without taps.
        truth: The reference at the taps, if it is known yet.
        budget: Bytes of taps that one run may return.

    Raises:
        DiskFullError: It has not.
    """
    taps = [value.nbytes for value in truth.taps.values()] if truth is not None else []
    tensors = sum(4 * graph.tensors[t].size for op in graph.ops for t in op.outputs)
    need, free = needed(taps, tensors, budget), shutil.disk_usage(folder).free
    if need > free:
        raise DiskFullError(
            f"The runs need about {need / 1e9:.1f} GB of temporary files, and {folder.parent} has {free / 1e9:.1f} GB."
        )
