"""What a run keeps of its culprits so that they can be reproduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bisect_litert.bundles import reproduction
from bisect_litert.bundles.reproduction import Material
from bisect_litert.measuring.evaluation import GPU
from bisect_litert.record import Culprit
from bisect_litert.taps.tapping import Tapping
from bisect_litert.verdicts.judging import Findings, block_ops

KeepTwin = Callable[[Path, Culprit, Tapping, Sequence[str]], None]
"""Writes a culprit in PyTorch's terms: into a folder, with the taps and the names of all blocks."""


def to_keep(known: Findings) -> list[Culprit]:
    """Returns the culprits to reproduce: the whole model where it is at fault and no block is."""
    verdict = known.verdict
    if not known.found.culprits and verdict.diverged and verdict.cause in reproduction.WHOLE:
        return [Culprit("(model)", verdict.cause, "", (), "")]
    return known.found.culprits


def keep(folder: Path, known: Findings, tapped: Tapping, keep_twin: KeepTwin) -> None:
    """Keeps of each culprit what a bug report is made of, while the model is there.

    Args:
        folder: The run folder.
        known: What the run found.
        tapped: Where its blocks are tapped.
        keep_twin: Called for each that was kept.
    """
    culprits = to_keep(known)
    known.found.notes += reproduction.keep(folder, culprits, _material(known, tapped))
    blocks = list(dict.fromkeys(t.block for t in known.taps))
    for place, culprit in reproduction.folders(folder, culprits):
        keep_twin(place, culprit, tapped, blocks)


def _material(known: Findings, tapped: Tapping) -> Material:
    located = [t for t in tapped.taps if t.tensor >= 0 and t.layout is not None]
    ops, truth = block_ops(known), known.truth
    assert truth is not None, "it was run"

    def right(block: str) -> dict[int, np.ndarray]:
        shapes = tapped.graph.tensors
        return {
            t.tensor: t.layout.from_torch(truth.taps[t.key], shapes[t.tensor].shape)
            for t in located
            if t.block == block and t.layout is not None
        }

    return Material(
        graph=tapped.graph,
        values=tapped.values,
        walls=frozenset(t.tensor for t in located),
        ops_of=lambda block: ops.get(block, []),
        right=right,
        settings=known.settings,
        emulated=known.target != GPU,
    )
