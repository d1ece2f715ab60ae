"""How sure a verdict is: how many independent readings agree, and which one would raise it."""

from __future__ import annotations

from dataclasses import dataclass

from bisect_litert.culprits import Reading, limit, misconverted
from bisect_litert.metrics import out_of_line
from bisect_litert.record import Cause, Culprit, Settings

CLEAR = 3.0
"""Times the limit from which a local error is no borderline case."""
HIGH, MEDIUM = 0.75, 0.5
"""Shares of the readings that can be had for a cause."""


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


def confidence(culprit: Culprit, reading: Reading | None, around: Circumstances, settings: Settings) -> tuple[str, str]:
    """Returns "high", "medium" or "low", and a sentence on what it rests on and what would raise it."""
    readings = _readings(culprit, reading, around, settings)
    agree = [name for name, (holds, _) in readings.items() if holds]
    missing = [how for holds, how in readings.values() if not holds]
    share = len(agree) / max(1, len(readings))
    word = "high" if share >= HIGH else "medium" if share >= MEDIUM else "low"
    if not around.gpu and word == "high":
        word = "medium"
    rests = f"{len(agree)} of {len(readings)} readings agree ({', '.join(agree)})" if agree else "no reading agrees"
    raise_by = f"; {missing[0]} would raise it" if missing else ""
    return word, f"{rests}{raise_by}."


def _readings(
    culprit: Culprit, reading: Reading | None, around: Circumstances, settings: Settings
) -> dict[str, tuple[bool, str]]:
    """By name: whether a reading supports the verdict, and how to get it where it does not."""
    found: dict[str, tuple[bool, str]] = {}
    if culprit.cause is Cause.CONVERSION:
        found["the CPU run differs"] = (reading is not None and misconverted(reading, settings), "a CPU run")
        found["its operator is known"] = (bool(culprit.source), "a smaller block")
        return found
    local = reading.local if reading else None
    found["the error is clear"] = (
        reading is not None
        and local is not None
        and out_of_line(local, CLEAR * limit(reading, settings) if culprit.cause is not Cause.PRECISION_LOSS else 0.0),
        "inputs that show the fault more clearly",
    )
    if around.gpu and reading is not None:
        if not settings.fp32:
            fp32_right = reading.fp32 is not None and not out_of_line(reading.fp32, limit(reading, settings))
            decided = not fp32_right if culprit.cause is Cause.WRONG_KERNEL else fp32_right
            found["fp32 on the GPU decides"] = (reading.fp32 is not None and decided, "a run in fp32 on the GPU")
        found["the taps change nothing"] = (around.taps_agree, "a tap set that leaves the outputs as they are")
        found["kept off the GPU it comes right"] = (
            any("right" in said for said in culprit.proof),
            "inputs for which an output of the model shows it",
        )
        if around.repeats is not None:
            found["the GPU repeats itself"] = (around.repeats, "a driver that repeats its results")
    if reading is not None and culprit.cause in (Cause.OVERFLOW, Cause.WRONG_KERNEL) and not settings.fp32:
        shown = out_of_line(reading.half, limit(reading, settings))
        agrees = shown if culprit.cause is Cause.OVERFLOW else not shown
        found["emulated fp16 agrees"] = (agrees, "a GPU of another vendor")
    found["its op is known"] = (culprit.op >= 0, "a smaller block")
    found["healed, the rest is right"] = (around.healed_right, "outputs that come right once the culprits are healed")
    return found
