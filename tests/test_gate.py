"""Taps that change what they measure, or that the runtime does not survive: planted at the process boundary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faulty_gpu import Fault
from test_healing import conversions, dag, named, planted  # noqa: F401 (fixtures)

from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark

Planted = Callable[..., RunRecord]


def marks(record: RunRecord) -> dict[str, Mark]:
    return {block.name: block.mark for block in record.blocks}


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_tap_set_that_crashes_is_halved_and_the_fault_found(planted: Planted, most: int) -> None:  # noqa: F811
    record = planted(0, Fault("n2", "noise"), most_taps=most)
    assert named(record) == [("n2", Cause.WRONG_KERNEL)], record.verdict.summary
    assert any("taken in batches" in note for note in record.verdict.notes)
    assert any(run.status == "crashed" for run in record.runs)
    assert Mark.UNTAPPED not in marks(record).values()
    whole = planted(0, Fault("n2", "noise"))
    assert [repr(b.errors) for b in record.blocks] == [repr(b.errors) for b in whole.blocks]


def test_a_tap_that_crashes_alone_is_left_out_and_said(planted: Planted) -> None:  # noqa: F811
    record = planted(1, Fault("n1", "crash", tapped=True), Fault("n5", "noise"))
    assert named(record) == [("n5", Cause.WRONG_KERNEL)], record.verdict.summary
    assert any("With n1 tapped it does not run at all." in note for note in record.verdict.notes)
    assert {name for name, mark in marks(record).items() if mark is Mark.UNTAPPED} == {"n1"}


@pytest.mark.parametrize("heeds", [True, False])
def test_a_fault_that_taps_cure_is_found_without_any(planted: Planted, heeds: bool) -> None:  # noqa: F811
    seed, k = 1, 3
    record = planted(seed, Fault(f"n{k}", "noise", tapped=False), heeds=heeds)
    assert (record.verdict.cause, record.verdict.diverged) == (Cause.TAP_EFFECT, True), record.verdict.summary
    (culprit,) = record.culprits
    readers = [f"n{i}" for i, before in enumerate(dag(seed).parents) if k in before]
    assert culprit.block in readers
    assert culprit.cause is Cause.TAP_EFFECT
    assert culprit.op == culprit.region[0] == culprit.region[1] >= 0
    assert ("the graph was split there" in culprit.evidence[0]) is (not heeds)
    assert any(f"n{k} alone is enough for it" in note for note in record.verdict.notes)
    assert culprit.proof[0].startswith(f"With only op {culprit.op} kept off the GPU every output is right")


@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_a_fault_that_taps_cause_is_no_divergence(planted: Planted, budget: int) -> None:  # noqa: F811
    record = planted(0, Fault("n2", "noise", tapped=True), tap_memory=budget)
    assert (record.verdict.cause, record.verdict.diverged) == (Cause.TAP_EFFECT, False), record.verdict.summary
    assert not record.culprits
    assert "tapping n2 puts an output off" in record.verdict.summary


def test_a_runtime_that_survives_no_tap_is_searched_without(planted: Planted) -> None:  # noqa: F811
    record = planted(0, Fault("n2", "noise"), most_taps=0)
    assert record.verdict.diverged, record.verdict.summary
    assert [c.block for c in record.culprits] == ["n2"]
    assert any("No tapped run worked" in note for note in record.verdict.notes)


def test_the_budget_for_taps_does_not_show(planted: Planted) -> None:  # noqa: F811
    whole, split = (planted(1, Fault("n3", "scale"), tap_memory=budget) for budget in (1 << 30, 1100))
    assert len(split.runs) == len(whole.runs)
    assert named(split) == named(whole) == [("n3", Cause.WRONG_KERNEL)]
    assert [repr(b.errors) for b in split.blocks] == [repr(b.errors) for b in whole.blocks]
    assert split.culprits[0].evidence == whole.culprits[0].evidence
