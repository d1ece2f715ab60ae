"""What fp32 costs torch itself: a difference that is not defined is no difference of zero."""

from __future__ import annotations

from math import inf

import numpy as np

from bisect_litert.subjects.torch_subject import differences


def test_a_difference_that_is_not_defined_is_left_out() -> None:
    ones = np.ones(4, np.float32)
    reference = {"a": ones, "zero": 0 * ones, "infinite": inf * ones, "both zero": 0 * ones, "other": np.ones(5)}
    target = {"a": 2 * ones, "zero": ones, "infinite": -inf * ones, "both zero": 0 * ones, "other": ones, "new": ones}
    assert differences(reference, target) == {"a": 1.0, "both zero": 0.0}


def test_whole_numbers_have_none() -> None:
    assert differences({"i": np.arange(3)}, {"i": np.arange(3)}) == {}
