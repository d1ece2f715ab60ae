"""Which tensors a run folder keeps: the suspects' and their neighbours', reference and target, under a budget."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bisect_litert.measuring.readings import Tap

FOLDER = "tensors"
BUDGET = 256 << 20
"""Bytes that may be kept; tensors beyond it are left out, the last ones first."""


def wanted(taps: Sequence[Tap], suspects: Sequence[str]) -> list[Tap]:
    """The taps worth keeping: suspects first, then the blocks right before and after them; without suspects the last
    block's."""
    blocks = list(dict.fromkeys(t.block for t in taps))
    chosen: dict[str, None] = dict.fromkeys(b for b in blocks if b in suspects)
    for step in (-1, 1):
        for block in suspects:
            at = blocks.index(block) + step if block in blocks else -1
            if 0 <= at < len(blocks):
                chosen.setdefault(blocks[at])
    if not chosen and blocks:
        chosen[blocks[-1]] = None
    order = list(chosen)
    return sorted((t for t in taps if t.block in chosen), key=lambda t: order.index(t.block))


def keep(
    folder: Path, taps: Sequence[Tap], reference: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]
) -> dict[str, tuple[str, str]]:
    """Writes tensors as .npy.

    Returns:
        By tap key: the reference's and the target's file, relative to the folder. Taps that did not fit or could not
        be written are left out.
    """
    left = BUDGET
    found: dict[str, tuple[str, str]] = {}
    for tap in taps:
        ref, out = reference.get(tap.key), target.get(tap.key)
        if ref is None or out is None or ref.nbytes + out.nbytes > left:
            continue
        stem = re.sub(r"[^\w.@+-]+", "_", tap.key).strip("_") or "output"
        names = tuple(f"{FOLDER}/{len(found):03d}-{stem}.{side}.npy" for side in ("reference", "target"))
        try:
            (folder / FOLDER).mkdir(exist_ok=True)
            np.save(folder / names[0], ref, allow_pickle=False)
            np.save(folder / names[1], np.ascontiguousarray(out), allow_pickle=False)
        except OSError:
            break
        left -= ref.nbytes + out.nbytes
        found[tap.key] = (names[0], names[1])
    return found
