"""A place for tensors that are kept: in memory up to a budget, beyond it in files that are mapped."""

from __future__ import annotations

import errno
import tempfile
import weakref

import numpy as np

from bisect_litert.errors import DiskFullError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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
        """Returns the array, or what a file holds of it, read-only. The caller gives its own up.

        Raises:
            DiskFullError: There is no room for the file.
        """
        if array.nbytes <= self._room:
            self._room -= array.nbytes
            weakref.finalize(array, self._give_back, array.nbytes)
            return array
        try:
            return _on_disk(array)
        except OSError as error:
            if error.errno in _DISK_FULL:  # memory would be asked for as much as the disk was
                raise DiskFullError(f"The disk that holds {tempfile.gettempdir()} is full.") from None
            return array  # no files there at all: memory may do

    def _give_back(self, size: int) -> None:
        self._room += size


def _on_disk(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryFile(prefix="bisect-litert-") as file:  # without a name: it goes when its last map does
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape).view(np.ndarray)
