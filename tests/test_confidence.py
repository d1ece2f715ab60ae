"""How sure a verdict is: what counts, and that what is said to raise it can be had and is not there already."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from test_culprits import SETTINGS, off, reading

from bisect_litert.record import Culprit
from bisect_litert.verdicts.confidence import Circumstances, confidence
from bisect_litert.vocabulary import OTHER_WEIGHTS, Cause

AROUND = Circumstances(gpu=True, taps_agree=True, repeats=True, healed_right=True)
PROVED = ("With this block kept off the GPU every output is right (within 0.001).",)
HIDDEN = ("No output of the model shows the fault, so keeping it off the GPU proves nothing.",)
FAILED = ("With this block kept off the GPU an output is still off by 0.3: there is more to it.",)


def culprit(cause: Cause, **more: object) -> Culprit:
    known = Culprit("b", cause, "", ("It is.",), "Do.", op=3, proof=PROVED)
    return replace(known, **more)  # type: ignore[arg-type]


KERNEL = reading(local=0.5, fp32=0.5)
OVERFLOW = reading(local=nan, half=nan, fp32=1e-6)


@pytest.mark.parametrize(
    ("cause", "found", "more", "around", "divisible", "word", "raised_by"),
    [
        (Cause.WRONG_KERNEL, KERNEL, {}, {}, True, "high", ""),
        (Cause.OVERFLOW, OVERFLOW, {}, {}, True, "high", ""),
        # fp32 decides by what the search goes by, also where it is below fp16's limit
        (Cause.WRONG_KERNEL, reading(local=0.012, fp32=0.004), {}, {}, True, "high", "inputs that show the fault"),
        # the control is missing, and can be had or not
        (Cause.WRONG_KERNEL, reading(local=0.5), {}, {}, True, "high", "a run in fp32 on the GPU would raise it"),
        (Cause.WRONG_KERNEL, reading(local=0.5), {}, {"has_fp32": False}, True, "high", "which this version"),
        (Cause.OVERFLOW, replace(reading(local=nan, half=nan), fp32_ran=True), {}, {}, True, "high", ""),
        # it is there and says otherwise: another one would say the same
        (Cause.PRECISION_LOSS, reading(local=0.02, fp32=0.019), {}, {}, True, "high", ""),
        # a proof that failed is no reading to be asked for again; one that no output can show needs other inputs
        (Cause.WRONG_KERNEL, KERNEL, {"proof": FAILED}, {}, True, "high", ""),
        (Cause.WRONG_KERNEL, KERNEL, {"proof": HIDDEN}, {}, True, "high", "inputs for which an output"),
        (Cause.ALIASED_OUTPUT, KERNEL, {"proof": ()}, {}, True, "high", ""),
        # no smaller block than a leaf
        (Cause.WRONG_KERNEL, KERNEL, {"op": -1}, {}, True, "high", "a smaller block would raise it"),
        (Cause.WRONG_KERNEL, KERNEL, {"op": -1}, {}, False, "high", ""),
        # emulation rounds what is stored: an overflow of a sum is no reading against it
        (Cause.OVERFLOW, reading(local=nan, fp32=1e-6), {}, {}, True, "high", ""),
        # what is found without taps has no errors at a block, nothing to heal, and taps that change things by nature
        (Cause.TAP_EFFECT, None, {}, {"taps_agree": False, "healed_right": False}, True, "high", ""),
        # without a GPU there is one thing to do
        (
            Cause.OVERFLOW,
            reading(local=nan, half=nan),
            {},
            {"gpu": False},
            True,
            "medium",
            "a run on a GPU would raise",
        ),
        (Cause.CONVERSION, reading(cpu=0.5), {"source": "m.py:3"}, {"gpu": False}, True, "high", ""),
        (Cause.CONVERSION, reading(cpu=0.5), {}, {}, True, "medium", "a smaller block would raise it"),
        (Cause.CONVERSION, reading(cpu=0.5), {}, {}, False, "medium", ""),
        (
            Cause.CONVERSION,
            reading(cpu=0.5),
            {"kind": OTHER_WEIGHTS},
            {},
            True,
            "low",
            "a file made of this checkpoint",
        ),
    ],
)
def test_what_it_rests_on(
    cause: Cause, found: object, more: dict[str, object], around: dict[str, bool], divisible: bool, word: str,
    raised_by: str,
) -> None:  # fmt: skip
    said = confidence(culprit(cause, **more), found, replace(AROUND, **around), SETTINGS, divisible=divisible)  # type: ignore[arg-type]
    assert said[0] == word, said
    assert raised_by in said[1], said
    assert ("would raise" in said[1]) is bool(raised_by), said


def test_a_fault_that_is_not_finite_is_clear() -> None:
    assert off(nan).new_nonfinite or off(nan).relative_l2 != off(nan).relative_l2
    assert "the error is clear" in confidence(culprit(Cause.OVERFLOW), OVERFLOW, AROUND, SETTINGS)[1]
