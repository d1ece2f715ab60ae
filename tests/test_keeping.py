"""Which tensors a run folder keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bisect_litert.measuring.readings import Tap
from bisect_litert.records import keeping
from bisect_litert.vocabulary import TapOrigin


def tap(block: str, label: str = "") -> Tap:
    return Tap(f"{block}{label}", block, block, "Block", 1, label, (4,), "float32", TapOrigin.GRAPH, 1)


TAPS = [tap("b0"), tap("b1"), tap("b2", "[0]"), tap("b2", "[1]"), tap("b3"), tap("b4")]


def test_suspects_come_first_and_bring_their_neighbours() -> None:
    assert [t.key for t in keeping.wanted(TAPS, ["b2"])] == ["b2[0]", "b2[1]", "b1", "b3"]


def test_a_healthy_run_keeps_the_last_block() -> None:
    assert [t.key for t in keeping.wanted(TAPS, [])] == ["b4"]


def test_files_hold_what_was_given(tmp_path: Path) -> None:
    reference = {t.key: np.arange(4, dtype=np.float32) for t in TAPS}
    target = {t.key: np.full(4, np.nan, np.float32) for t in TAPS}
    kept = keeping.keep(tmp_path, TAPS, reference, target)
    assert set(kept) == {t.key for t in TAPS}
    ref, out = (np.load(tmp_path / name) for name in kept["b2[1]"])
    assert np.array_equal(ref, reference["b2[1]"])
    assert np.isnan(out).all()


def test_a_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "BUDGET", 3 * 32)
    values = {t.key: np.zeros(4, np.float32) for t in TAPS}
    assert list(keeping.keep(tmp_path, TAPS, values, values)) == ["b0", "b1", "b2[0]"]
