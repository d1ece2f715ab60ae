"""What a run that was stopped tells of how far off its blocks were."""

from __future__ import annotations

import numpy as np

from bisect_litert.measuring.metrics import compare
from bisect_litert.measuring.readings import Errors, Tap
from bisect_litert.measuring.stopped import furthest
from bisect_litert.vocabulary import RunName, TapOrigin


def test_a_number_does_not_stand_before_nan() -> None:
    one = np.ones(4, np.float32)
    nowhere = compare(reference=np.full(4, np.inf, np.float32), target=np.full(4, np.inf, np.float32))
    assert np.isnan(nowhere.relative_l2)
    assert nowhere.finite_agreement
    near = compare(reference=one, target=one * np.float32(1.25))
    taps = [Tap(name, name, name, "", 0, "", (4,), "float32", TapOrigin.GRAPH) for name in ("a", "b")]
    for cumulative in ({"a": near, "b": nowhere}, {"b": nowhere, "a": near}):
        (told,) = furthest({RunName.CPU: Errors(cumulative, {}, {}, {})}, taps)
        assert told == "Ended before that: the CPU, at most nan off, in b."
    (told,) = furthest({RunName.CPU: Errors({"a": near}, {}, {}, {})}, taps)
    assert told == "Ended before that: the CPU, at most 0.25 off, in a."
