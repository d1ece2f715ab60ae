"""A place for tensors that are kept: in memory up to a budget, beyond it in files that are mapped."""

from __future__ import annotations

import tempfile
import weakref

import numpy as np

BUDGET = 1 << 30
"""Bytes in memory, unless told otherwise."""


class Shelf:
    """Keeps arrays for as long as somebody holds them.

    Args:
        budget: Bytes that may be in memory at one time. What an array took is free again when nobody holds it.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._room = budget

    def keep(self, array: np.ndarray) -> np.ndarray:
        """Returns the array, or what a file holds of it, read-only. The caller gives its own up."""
        if array.nbytes <= self._room:
            self._room -= array.nbytes
            weakref.finalize(array, self._give_back, array.nbytes)
            return array
        try:
            return _on_disk(array)
        except OSError:  # no space there either: memory may do, and if it does not, says so itself
            return array

    def _give_back(self, size: int) -> None:
        self._room += size


def _on_disk(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile(prefix="bisect-litert-") as file:  # without a name: it goes when its last map does
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape).view(np.ndarray)
