"""The search by halving, and what a control run says."""

from __future__ import annotations

from math import nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bisect_litert.counterfactual import Control, first_wrong
from bisect_litert.metrics import compare


@given(st.integers(0, 500), st.data())
def test_the_first_wrong_op_is_found_in_few_runs(last: int, data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, last))
    asked: list[int] = []

    def wrong(op: int) -> bool:
        asked.append(op)
        return op >= fault

    found = first_wrong(last, wrong)
    assert found == fault
    assert len(asked) <= max(1, last).bit_length() + 1


def test_nothing_is_named_when_nothing_could_be_told() -> None:
    assert first_wrong(9, lambda _: None) is None


@given(st.integers(1, 200), st.data())
def test_an_answer_that_could_not_be_had_never_names_an_op_past_the_fault(last: int, data: st.DataObject) -> None:
    fault = data.draw(st.integers(0, last))
    unknown = data.draw(st.sets(st.integers(0, last)))
    found = first_wrong(last, lambda op: None if op in unknown else op >= fault)
    assert found is None or found <= fault


def test_a_control_is_right_only_with_outputs_that_are() -> None:
    reference = np.arange(1.0, 9.0)
    good = compare(reference=reference, target=reference * 1.001)
    bad = compare(reference=reference, target=reference * 2)
    broken = compare(reference=reference, target=np.where(reference == 3, nan, reference))
    assert Control({"output": good}, True).right(1e-2)
    assert not Control({"output": good, "other": bad}, True).right(1e-2)
    assert not Control({"output": broken}, True).right(1e-2)
    assert np.isnan(Control({"output": broken}, True).worst)
    assert not Control({}, True).right(1e-2)
    assert not Control({"output": good}, False).right(1e-2)
