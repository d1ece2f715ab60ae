from __future__ import annotations

import errno
import gc
from pathlib import Path

import numpy as np
import pytest

from bisect_litert.errors import DiskFullError
from bisect_litert.measuring.pieces import let_go
from bisect_litert.models.shelf import Shelf


def in_memory(array: np.ndarray) -> bool:
    return not isinstance(array.base, np.memmap)


def test_what_exceeds_the_budget_is_in_files_and_the_same() -> None:
    shelf, values = Shelf(100), [np.arange(n, n + 20, dtype=np.float32).reshape(4, 5) for n in range(3)]
    kept = [shelf.keep(value.copy()) for value in values]
    assert [in_memory(array) for array in kept] == [True, False, False]
    assert all(np.array_equal(one, other) and one.dtype == other.dtype for one, other in zip(kept, values, strict=True))
    with pytest.raises(ValueError, match="read-only"):
        kept[1][0, 0] = 1


def test_room_comes_back_when_nobody_holds_the_array() -> None:
    shelf = Shelf(100)
    held = shelf.keep(np.ones(20, np.float32))[2:]
    assert not in_memory(shelf.keep(np.ones(20, np.float32)))  # a part of it still holds the whole
    del held
    gc.collect()
    assert in_memory(shelf.keep(np.ones(20, np.float32)))


def test_a_full_disk_is_said_and_a_place_without_files_leaves_it_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    said = OSError(errno.EROFS, "Read-only file system")

    def no_file(*_: object, **__: object) -> None:
        raise said

    monkeypatch.setattr("bisect_litert.models.shelf.tempfile.TemporaryFile", no_file)
    array = np.ones(3)
    assert Shelf(0).keep(array) is array
    said = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFullError, match="is full") as info:
        Shelf(0).keep(array)
    assert "TMPDIR" in info.value.hint


def test_a_scalar_of_nothing_and_an_empty_array_stay() -> None:
    assert Shelf(0).keep(np.zeros((0, 3))).shape == (0, 3)
    assert float(Shelf(0).keep(np.array(2.5))) == 2.5


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what is resident")
def test_what_was_read_can_be_let_go_and_is_still_there() -> None:
    value = np.arange(1 << 20, dtype=np.float32)
    kept = Shelf(0).keep(value.copy())
    before = resident()
    assert np.array_equal(kept, value)
    assert resident() - before >= value.nbytes // 2
    let_go(kept.reshape(2, -1)[1:], value)
    assert resident() - before < value.nbytes // 2
    assert np.array_equal(kept, value)


def resident() -> int:
    """Bytes of files that are mapped into this process and in memory."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssFile:"))
    return int(line.split()[1]) * 1024
