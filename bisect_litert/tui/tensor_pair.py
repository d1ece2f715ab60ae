"""Two tensor files of a run folder, read in parts.

A part is copied out of a memory map that is dropped again, so that 500 MB files cost some tens of megabytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


class TensorError(Exception):
    """A tensor file that cannot be used; the message is a sentence for its panel."""


class TensorPair:
    """Two .npy files of one shape.

    Args:
        folder: The run folder.
        reference_file: Relative to it.
        target_file: Relative to it.

    Raises:
        TensorError: One is missing, damaged, outside the folder, or does not fit the other.
    """

    def __init__(self, folder: Path, reference_file: str, target_file: str) -> None:
        self._paths = (_inside(folder, reference_file), _inside(folder, target_file))
        shapes = [self._map(path).shape for path in self._paths]
        if shapes[0] != shapes[1]:
            raise TensorError(f"The tensors do not fit: {list(shapes[0])} against {list(shapes[1])}.")
        self.shape: tuple[int, ...] = shapes[0]
        self.bytes_read = 0

    @staticmethod
    def _map(path: Path) -> np.ndarray:
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise TensorError(f"{path.name} is missing from the run folder.") from None
        except (OSError, ValueError, EOFError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TensorError(f"{path.name} is damaged: {why}") from None
        if not isinstance(mapped, np.ndarray) or mapped.dtype.kind not in "fiub":
            raise TensorError(f"{path.name} does not hold numbers.")
        return mapped

    def read(self, index: tuple[int | slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Returns copies of a part of both tensors, in float64."""
        return self.read_one(0, index), self.read_one(1, index)

    def read_one(self, side: int, index: tuple[int | slice, ...]) -> np.ndarray:
        """Returns a copy of a part of the reference (0) or the target (1), in float64."""
        # A map of its own for every piece: with the last reference to it go the pages that were read.
        part = np.asarray(self._map(self._paths[side])[index])
        self.bytes_read += part.nbytes
        return part.astype(np.float64)


def _inside(folder: Path, name: str) -> Path:
    """Returns the path of a file in the run folder; records come from strangers, and may name any path."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise TensorError(f"{name} is not inside the run folder.")
    return path
