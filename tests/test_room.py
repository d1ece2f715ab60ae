"""A disk without room is said before anything is run, with what is needed, what there is, and what to do."""

from __future__ import annotations

import collections
import tempfile
from pathlib import Path

import pytest

from bisect_litert.entrances import run_bisection
from bisect_litert.errors import DiskFullError, ExitCode
from bisect_litert.measuring import room
from bisect_litert.record import RunRecord
from bisect_litert.request import BisectRequest
from bisect_litert.vocabulary import Cause

GIB = 1 << 30
MODEL = Path(__file__).parent / "data" / "mlp.tflite"


def test_small_taps_lie_there_once_for_each_run_and_large_ones_once() -> None:
    assert room.needed([10, 20], 100, GIB) == 4 * 30 + 100
    eight = [GIB // 25] * 200
    assert 8 * GIB <= room.needed(eight, 40 * GIB, GIB) <= 10 * GIB
    assert room.needed(eight, 40 * GIB, 2 * GIB) > room.needed(eight, 40 * GIB, GIB)


def test_a_run_that_has_no_room_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: usage(1, 1, 0))
    with pytest.raises(DiskFullError, match=r"^The runs need about \d+\.\d GB .* has 0\.0 GB\.") as info:
        run_bisection(BisectRequest(str(MODEL), out=tmp_path / "run", no_gpu=True), lambda _: None)
    assert all(word in info.value.hint for word in ("TMPDIR", "--blocks", "--tap-memory"))
    assert info.value.exit_code is ExitCode.CANNOT_TEST
    assert RunRecord.load(tmp_path / "run").verdict.cause is Cause.CANNOT_TEST
    assert not list(scratch.iterdir())
