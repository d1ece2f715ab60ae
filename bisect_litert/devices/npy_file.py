"""Reads .npy files as the worker writes them, from any thread.

`numpy.load` hands the header to `ast`, which keeps its recursion depth for the whole interpreter: in a thread, while
another one is in there (torch.export is, for seconds), Python 3.11 ends either with "AST constructor recursion depth
mismatch". Results are read in threads, so their headers are read here.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import numpy as np

_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(r"\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), ?\}\s*")
_LONGEST = 1 << 16
"""Bytes that a header may take; ours take some hundred."""


def read_npy(path: Path, *, mapped: bool = False) -> np.ndarray:
    """Returns the array in a .npy file.

    Args:
        path: The file.
        mapped: Map it, read-only, instead of reading it.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no .npy file of numbers, or not whole.
    """
    with path.open("rb") as file:
        start = file.read(8)
        if start[:6] != _MAGIC or len(start) < 8:
            raise ValueError(f"{path.name} is no .npy file")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(file.read(width), "little")
        if length > _LONGEST:
            raise ValueError(f"{path.name} has a header of {length} bytes")
        header = _HEADER.fullmatch(file.read(length).decode("latin-1"))
        if header is None:
            raise ValueError(f"{path.name} has a header that says nothing of plain numbers")
        try:
            dtype = np.dtype(header[1])
        except TypeError:
            raise ValueError(f"{path.name} holds {header[1]}") from None
        if dtype.hasobject:
            raise ValueError(f"{path.name} holds objects")
        shape = tuple(int(n) for n in header[3].split(",") if n.strip())
        order: Literal["F", "C"] = "F" if header[2] == "True" else "C"
        offset = file.tell()
        count: int = math.prod(shape)
        if path.stat().st_size < offset + count * dtype.itemsize:
            raise ValueError(f"{path.name} is not whole")
        if mapped and count:
            found: np.ndarray = np.memmap(path, dtype, "r", offset, shape, order)
        else:
            found = np.fromfile(file, dtype, count).reshape(shape, order=order)
        return found
