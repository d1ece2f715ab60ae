"""How sure a verdict is: how many independent readings agree, and which one would raise it."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_litert.measuring.metrics import out_of_line
from bisect_litert.record import Culprit, Settings
from bisect_litert.search.culprits import Reading, limit, misconverted, shares_fault
from bisect_litert.vocabulary import OTHER_WEIGHTS, Cause

CLEAR = 3.0
"""Times the limit from which a local error is no borderline case."""
HIGH, MEDIUM = 0.75, 0.5
"""Shares of the readings that can be had for a cause."""
PROVED = "every output is right"
"""What a proof says that worked."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What holds for the run as a whole."""

    gpu: bool
    """Whether a GPU ran, or the emulated run stood in for it."""
    taps_agree: bool
    """Whether the model's outputs are the same with and without taps."""
    repeats: bool | None
    """Whether the GPU gave the same bits twice; None when that was not tried."""
    healed_right: bool
    """Whether the outputs came right once the culprits were healed."""
    has_fp32: bool = True
    """Whether the runtime has an option for fp32 on the GPU."""


@dataclass(frozen=True, slots=True)
class _Support:
    """Whether a reading supports the verdict."""

    holds: bool
    how: str = ""
    """What would give a better one where it does not; empty when nothing would: it was made, and says otherwise."""


def confidence(
    culprit: Culprit, reading: Reading | None, around: Circumstances, settings: Settings, *, divisible: bool = True
) -> tuple[str, str]:
    """Returns "high", "medium" or "low", and a sentence on what it rests on and what would raise it.

    Args:
        culprit: With its op and proof.
        reading: What was measured at its block; None where taps told nothing.
        around: The run.
        settings: The thresholds.
        divisible: Whether smaller blocks than the culprit's can be asked for.
    """
    readings = _readings(culprit, reading, around, settings, "a smaller block" if divisible else "")
    agree = [name for name, support in readings.items() if support.holds]
    missing = [support.how for support in readings.values() if not support.holds and support.how]
    share = len(agree) / max(1, len(readings))
    word = "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"
    if culprit.kind == OTHER_WEIGHTS:
        word = "low"
    elif not around.gpu and culprit.cause is not Cause.CONVERSION:
        word = "medium" if word == "high" else word
        missing.insert(0, "a run on a GPU")
    rests = f"{len(agree)} of {len(readings)} readings agree ({', '.join(agree)})" if agree else "no reading agrees"
    raise_by = f"; {missing[0]} would raise it" if missing else ""
    return word, f"{rests}{raise_by}."


def _readings(
    culprit: Culprit, reading: Reading | None, around: Circumstances, settings: Settings, smaller: str
) -> dict[str, _Support]:
    """By name, the readings that a cause can have."""
    found: dict[str, _Support] = {}
    cause = culprit.cause
    if cause is Cause.CONVERSION:
        found["the CPU run differs"] = _Support(reading is not None and misconverted(reading, settings))
        if culprit.kind == OTHER_WEIGHTS:
            found["the file holds the model's weights"] = _Support(False, "a file made of this checkpoint")
        else:
            found["its operator is known"] = _Support(bool(culprit.source), smaller)
        return found
    if reading is not None and reading.local is not None:
        least = CLEAR * limit(reading, settings) if cause is not Cause.PRECISION_LOSS else 0.0
        clear = out_of_line(reading.local, least)
        found["the error is clear"] = _Support(clear, "inputs that show the fault more clearly")
    if around.gpu:
        if reading is not None and not settings.fp32:
            found["fp32 on the GPU decides"] = _fp32(cause, reading, around, settings)
        if cause is not Cause.TAP_EFFECT:  # which is that they do
            agrees = _Support(around.taps_agree, "a choice of --blocks whose taps leave the outputs as they are")
            found["the taps change nothing"] = agrees
        if culprit.proof:
            proved = any(PROVED in said for said in culprit.proof)
            hidden = any("No output" in said for said in culprit.proof)
            how = "inputs for which an output of the model shows it" if hidden else ""
            found["kept off the GPU it comes right"] = _Support(proved, how)
        if around.repeats is not None:
            found["the GPU repeats itself"] = _Support(around.repeats, "a driver that repeats its results")
        emulated = _emulated(cause, reading, settings)
        if emulated is not None:
            found["emulated fp16 agrees"] = emulated
    found["its op is known"] = _Support(culprit.op >= 0, smaller)
    if cause is not Cause.TAP_EFFECT:  # there is nothing to heal
        found["the rest is right once it is healed"] = _Support(around.healed_right)
    return found


def _fp32(cause: Cause, reading: Reading, around: Circumstances, settings: Settings) -> _Support:
    """Whether the run in fp32 on the GPU decides as the verdict does."""
    if reading.fp32 is None:
        if reading.fp32_ran:
            return _Support(False)  # it says nothing of this block
        run = "a run in fp32 on the GPU"
        return _Support(False, run if around.has_fp32 else f"{run}, which this version of the runtime does not have,")
    shared = shares_fault(reading, settings)
    if cause is Cause.WRONG_KERNEL:
        return _Support(shared)
    return _Support(not shared and not out_of_line(reading.fp32, limit(reading, settings)))


def _emulated(cause: Cause, reading: Reading | None, settings: Settings) -> _Support | None:
    """Whether the emulated run shows what it should; None where it cannot tell.

    It rounds what is stored. An overflow that it does not show is one of a sum, or one that a skip path hides.
    """
    if reading is None or reading.half is None or settings.fp32:
        return None
    shown = out_of_line(reading.half, limit(reading, settings))
    if cause is Cause.OVERFLOW and shown:
        return _Support(True)
    return _Support(not shown, "a GPU of another vendor") if cause is Cause.WRONG_KERNEL else None
