"""What a reproduction's script calls wrong, and what it calls the same fault."""

from __future__ import annotations

import numpy as np
import pytest

from bisect_litert.bundles.repro_script import DIFFERENT, FIXED, SAME, error, verdict

RIGHT = {"new_nonfinite": 0, "relative_l2": 1e-4}
OFF = {"new_nonfinite": 0, "relative_l2": 0.3}
INFINITE = {"new_nonfinite": 3, "relative_l2": 1e-4}


@pytest.mark.parametrize(
    ("cause", "gpu", "fp32", "word"),
    [
        ("wrong-kernel", OFF, OFF, SAME),
        ("wrong-kernel", INFINITE, OFF, SAME),
        ("wrong-kernel", OFF, RIGHT, DIFFERENT),
        ("wrong-kernel", RIGHT, OFF, DIFFERENT),
        ("overflow", INFINITE, RIGHT, SAME),
        ("overflow", OFF, RIGHT, SAME),
        ("overflow", INFINITE, OFF, DIFFERENT),
        ("precision-loss", OFF, RIGHT, SAME),
        ("precision-loss", INFINITE, RIGHT, DIFFERENT),
        ("overflow", RIGHT, RIGHT, FIXED),
        ("wrong-kernel", RIGHT, RIGHT, FIXED),
    ],
)
def test_the_same_fault_another_or_none(cause: str, gpu: dict[str, float], fp32: dict[str, float], word: str) -> None:
    assert verdict(cause, 5e-3, {"out": gpu}, {"out": fp32}) == word


def test_what_is_newly_not_finite_counts_and_nothing_replaces_it() -> None:
    reference = np.array([1.0, np.inf, -np.inf, np.nan, 2.0])
    assert error(reference, reference.copy()) == {"new_nonfinite": 0, "relative_l2": 0.0}
    assert error(reference, np.array([np.nan, np.inf, np.inf, np.nan, np.inf]))["new_nonfinite"] == 3
    assert error(np.zeros(3), np.ones(3))["relative_l2"] == np.inf


def test_a_mask_does_not_drown_the_scores_beside_it() -> None:
    rng = np.random.default_rng(0)
    reference = np.concatenate([rng.standard_normal(100), np.full(100, -1e4)])
    target = reference.copy()
    target[:100] *= 2
    assert error(reference, target)["relative_l2"] == pytest.approx(1.0)
    beyond = np.concatenate([rng.standard_normal(100), np.full(100, -1e9)])
    assert error(beyond, np.where(beyond < -1e6, beyond, 2 * beyond))["relative_l2"] == pytest.approx(1.0)
