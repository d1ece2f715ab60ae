"""Tensors taken in pieces that stay in the processor's cache, in their own order, without a copy of the whole."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import numpy as np

OnTensor = Callable[[str, np.ndarray], None]
"""Takes a tensor by its name as soon as it is computed; nobody keeps it afterwards."""
PIECE = 3 << 14
"""Elements computed with at a time: three eighths of a megabyte in float64."""
_ALONE = 1 << 13
"""Elements up to which a product of vectors stays in one thread: OpenBLAS shares longer ones (from 10000) among all
cores, and waits for a core that a worker has for as long as hundreds of products take."""


def dot(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the inner product of two vectors, computed in this thread alone."""
    if one.size <= _ALONE:
        return float(one.dot(other))
    whole = one.size - one.size % _ALONE
    rows = one[:whole].reshape(-1, 1, _ALONE) @ other[:whole].reshape(-1, _ALONE, 1)
    return float(rows.sum()) + float(one[whole:].dot(other[whole:]))


def chosen(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the elements of a flat tensor under a mask: `values[mask]`, which takes many times as long where the mask
    has no pattern."""
    return values.take(np.flatnonzero(mask))


def flat_pieces(values: np.ndarray, size: int = PIECE) -> Iterator[np.ndarray]:
    """Yields a tensor's elements in its own order, in pieces; a permuted view is not copied whole."""
    if values.flags.c_contiguous or values.size <= size:
        flat = values.reshape(-1)
        for start in range(0, flat.size, size):
            yield flat[start : start + size]
        return
    inner = values[0].size
    if inner <= size:
        rows = max(1, size // inner)
        for start in range(0, len(values), rows):
            yield values[start : start + rows].reshape(-1)
        return
    for part in values:
        yield from flat_pieces(part, size)


def pairs(one: np.ndarray, other: np.ndarray, size: int = PIECE) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields two tensors' elements side by side; at least one of them should lie in memory in its own order."""
    done = 0
    if one.flags.c_contiguous:
        flat = one.reshape(-1)
        for piece in flat_pieces(other, size):
            yield flat[done : done + piece.size], piece
            done += piece.size
    else:
        flat = other.reshape(-1)
        for piece in flat_pieces(one, size):
            yield piece, flat[done : done + piece.size]
            done += piece.size


def holds_nan(values: np.ndarray) -> bool:
    """Whether a tensor holds NaN."""
    found = values.dtype.kind == "f" and any(np.isnan(piece).any() for piece in flat_pieces(values))
    let_go(values)
    return found


def let_go(*arrays: np.ndarray) -> None:
    """Takes what was read of mapped files out of this process's memory; it comes back when it is read again.

    Else a process that looks at every tensor once is as large as all of them in the end.
    """
    for array in arrays:
        base: object = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)
