"""What reproductions of a run's culprits are made of."""

from __future__ import annotations

import numpy as np

from bisect_litert.bundles.reproduction import Material
from bisect_litert.measuring.evaluation import GPU
from bisect_litert.taps.tapping import Tapping
from bisect_litert.verdicts.judging import Findings, block_ops


def material_of(known: Findings, tapped: Tapping) -> Material:
    """Gathers it from what a run found.

    Args:
        known: A run that is over, its truth known.
        tapped: Where its blocks are tapped.
    """
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
