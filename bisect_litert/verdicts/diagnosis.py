"""From numbers to words: the evidence for each culprit, the verdict, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan

from bisect_litert.block_record import Comparison
from bisect_litert.measuring.metrics import out_of_line
from bisect_litert.record import Culprit, Settings, Verdict
from bisect_litert.search.culprits import UNEXPLAINED, Reading, fp32_limit, limit, small_beside
from bisect_litert.search.ranges import RangeFault
from bisect_litert.verdicts import advice
from bisect_litert.vocabulary import NO_CONTROL, OTHER_WEIGHTS, Cause


def percent(part: int, whole: int) -> str:
    """A share for people: never "0%" for something, never "100%" for less than all."""
    if not whole or not part:
        return "0%"
    share = 100 * part / whole
    if part < whole and share > 99:
        return "over 99%"
    return f"{share:.0f}%" if share >= 1 else "under 1%"


def shows(comparison: Comparison) -> str:
    """What is wrong with a tensor, in a few words."""
    c = comparison
    if c.unwritten:
        return f"{percent(c.unwritten, c.elements)} of it was never written"
    if c.new_nonfinite:
        return f"{percent(c.new_nonfinite, c.elements)} of it is NaN or infinite"
    if c.zeros == c.elements:
        return "all of it is zero"
    if c.new_zeros > c.elements / 100:
        return f"{percent(c.new_zeros, c.elements)} of it is zero where it should not be"
    if not isnan(c.scale) and c.relative_l2 > 0.5 and c.correlation > 0.98:
        return f"it is {c.scale:.3g} times what it should be, at a correlation of {c.correlation:.4f}"
    return f"it is off by {number(c.relative_l2)} (relative L2)"


def number(value: float) -> str:
    """Three significant digits, with NaN and infinity in words."""
    if isnan(value):
        return "undefined"
    if isinf(value):
        return "infinite"
    return f"{value:.2g}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.3g}"


def evidence(
    reading: Reading, cause: Cause, settings: Settings, fault: RangeFault | None, accumulated: str, target: str
) -> tuple[str, ...]:
    """Returns the sentences that carry a culprit's cause, strongest first."""
    found: list[str] = []
    allowed = limit(reading, settings)
    local, fp32, half, cpu = reading.local, reading.fp32, reading.half, reading.cpu
    if cause is Cause.OVERFLOW:
        found += [f"{fault.sentence()}."] if fault is not None else []
        found += [accumulated] if accumulated else []
    if cause is Cause.CONVERSION and cpu is not None:
        found.append(
            f"LiteRT on the CPU already differs from PyTorch at this block's own inputs: {shows(cpu)}; fp32 arithmetic "
            f"explains {number(fp32_limit(reading, settings))}."
        )
    elif local is not None and cause in (Cause.ALIASED_OUTPUT, Cause.UNWRITTEN_OUTPUT):
        found.append(f"At its own inputs {shows(local)}.")  # what rounding costs has no say in whose buffer it is
    elif local is not None:
        found.append(
            f"At its own inputs {shows(local)}; {_honest(reading, settings)}, the limit here is {number(allowed)}."
        )
    if fp32 is not None and cause is Cause.WRONG_KERNEL and not settings.fp32:
        found.append(f"The GPU in fp32 is wrong as well ({shows(fp32)}), so precision is not the reason.")
    if fp32 is not None and cause in (Cause.OVERFLOW, Cause.PRECISION_LOSS) and fp32.finite_agreement:
        found.append(_in_fp32(reading, fp32, settings))
    if cause is Cause.WRONG_KERNEL and fp32 is None:
        found.append("No run in fp32 on the GPU could be made; nothing that fp16 does explains an error of that size.")
    if cause is Cause.WRONG_KERNEL:
        if cpu is not None and not out_of_line(cpu, fp32_limit(reading, settings)):
            found.append(f"LiteRT on the CPU is right here ({number(cpu.relative_l2)}), so the file is.")
        if half is not None and not settings.fp32 and not out_of_line(half, min(allowed, settings.output_limit)):
            found.append(f"Emulated fp16 on the CPU is right here ({number(half.relative_l2)}).")
    elif cause is Cause.OVERFLOW and target == "gpu" and out_of_line(half, allowed) and half is not None:
        found.append(f"Emulated fp16 on the CPU shows it too ({shows(half)}).")
    return tuple(found)


def _in_fp32(reading: Reading, fp32: Comparison, settings: Settings) -> str:
    """What a finite run in fp32 says of a fault that is laid to fp16."""
    off = number(fp32.relative_l2)
    local = reading.local
    if local is None or small_beside(fp32, local) or (not local.finite_agreement and fp32.relative_l2 <= UNEXPLAINED):
        return f"The GPU in fp32 is off by {off} only, so fp16 is the reason."
    return (
        f"The GPU in fp32 is off by {off}; fp32 arithmetic and what the file itself rounds explain "
        f"{number(fp32_limit(reading, settings))}, so fp16 is the reason for the rest."
    )


def _digits(settings: Settings) -> str:
    return "fp32" if settings.fp32 else "fp16"


def _honest(reading: Reading, settings: Settings) -> str:
    if settings.fp32:
        return (
            f"LiteRT on the CPU is off by {number(reading.expected.relative_l2 if reading.expected else float('nan'))}"
        )
    return f"rounding to fp16 would cost {number(reading.cost)}"


def _where(target: str, settings: Settings) -> str:
    if target == "gpu":
        return "On the GPU in fp32" if settings.fp32 else "On the GPU"
    return "On the CPU (no GPU)" if settings.fp32 else "In emulated fp16 (no GPU)"


def first_look(reading: Reading, settings: Settings, target: str) -> str:
    """The first block that is wrong at its own inputs, before anything is known of the reason; the verdict may yet
    excuse it."""
    said = f"{shows(reading.local)}; {_honest(reading, settings)}" if reading.local is not None else "it is off"
    return (
        f"First look: {_where(target, settings)}, {reading.block} is the first to be wrong at its own inputs: {said}."
    )


def loss_evidence(reading: Reading, before: float, settings: Settings) -> tuple[str, ...]:
    """Evidence for a block that turns normal rounding into a visible error."""
    after = reading.cumulative.relative_l2 if reading.cumulative else float("nan")
    found = [
        f"The error grows from {number(before)} before this block to {number(after)} behind it, "
        f"{number(after / before)} times."
    ]
    if reading.noise:
        found = [
            f"Its terms cancel to nothing but their rounding, {number(after)} of their size: what follows shows it."
        ]
    local, expected = reading.local, reading.expected
    if local is not None and expected is not None and not reading.noise:
        if local.relative_l2 > settings.output_limit:
            rounding = "LiteRT's CPU in fp32" if settings.fp32 else "Rounding to fp16's 11 bits"
            found.append(
                f"{rounding} alone costs {number(expected.relative_l2)} inside it and the target shows "
                f"{number(local.relative_l2)}: no fault of the kernel."
            )
        else:
            found.append(
                f"The block itself is exact to {number(local.relative_l2)} at its own inputs; it amplifies the "
                "rounding that it is given."
            )
    if reading.fp32 is not None and not settings.fp32:
        found.append(f"In fp32 the GPU is off by {number(reading.fp32.relative_l2)} here.")
    return tuple(found)


def spot(culprit: Culprit) -> str:
    """Where inside its block a culprit sits: ": MUL (op 7) in enc.b3.norm, model.py:41"; empty when it is not known."""
    op = next((o for o in culprit.ops if o.index == culprit.op), None)
    parts = []
    if len(set(culprit.region)) > 1:
        parts.append(f"ops {culprit.region[0]} to {culprit.region[-1]} together")
    elif op is not None:
        parts.append(f"{op.type} (op {op.index})")
    elif culprit.operator:
        parts.append(culprit.operator)
    if culprit.module and culprit.module != culprit.block and parts:
        parts[-1] += f" in {culprit.module}"
    if culprit.source:
        parts.append(culprit.source)
    return f": {', '.join(parts)}" if parts else ""


NOTHING = "Nothing to do."
REAL_INPUTS = "Random inputs may miss what real ones reach: try those, too (--inputs)."

_SAYS = {
    Cause.OVERFLOW: "leaves fp16's range",
    Cause.PRECISION_LOSS: "loses digits that fp16 does not have",
    Cause.WRONG_KERNEL: "is computed wrongly by the GPU, in fp16 and fp32 alike",
    Cause.CONVERSION: "was changed by the conversion",
    Cause.TAP_EFFECT: "comes out differently when it is looked at",
    Cause.ALIASED_OUTPUT: "comes back with another tensor's values",
    Cause.UNWRITTEN_OUTPUT: "is never written",
    Cause.CRASH: "makes the runtime crash",
    Cause.HANG: "makes the runtime hang",
}


def summarise(
    culprits: Sequence[Culprit],
    classes: dict[str, str],
    outputs: Sequence[Comparison],
    settings: Settings,
    target: str,
    healed: str,
) -> Verdict:
    """Writes the verdict on a run whose culprits are known; without culprits it says that the outputs are in line."""
    where = _where(target, settings)
    worst = max((c.relative_l2 for c in outputs if not isnan(c.relative_l2)), default=float("nan"))
    if not culprits:
        state = f"in line with what {_digits(settings)} costs"
        text = f"{where} every block and every output is {state}" + (
            "." if isnan(worst) else f"; the worst output is off by {number(worst)}."
        )
        return Verdict(Cause.NONE, False, text, NOTHING if settings.inputs else f"{NOTHING} {REAL_INPUTS}")
    first = culprits[0]
    name = first.block + (f" ({classes[first.block]})" if classes.get(first.block) else "")
    says = _SAYS.get(first.cause, str(first.cause))
    if settings.fp32 and first.cause is Cause.WRONG_KERNEL:
        says = "is computed wrongly"  # nobody looked what it does in fp16
    if first.kind == "underflow":
        says = "falls below fp16's range"
    elif first.kind == NO_CONTROL:
        says = "is computed wrongly by the GPU"
    elif first.kind == OTHER_WEIGHTS:
        says = "has other weights in the file than in PyTorch"
    sentences = [f"{where}, {name} {says}{spot(first)}.", *first.evidence[:1]]
    if len(culprits) > 1:
        rest = ", ".join(
            f"{c.block} ({c.cause}{', hidden until the ones before it are healed' if c.hidden else ''})"
            for c in culprits[1:6]
        )
        sentences.append(f"Also: {rest}{' and more' if len(culprits) > 6 else ''}.")
    sentences += [said for said in (*first.proof[:1], healed)[:1] if said]
    return Verdict(first.cause, True, " ".join(sentences), first.advice)


def compounding(readings: Sequence[Reading], settings: Settings, target: str) -> Verdict:
    """The verdict on an error that no block makes and every block grows."""
    levels = [r.cumulative.relative_l2 for r in readings if r.cumulative and not isnan(r.cumulative.relative_l2)]
    where = _where(target, settings)
    first, last = (levels[0], levels[-1]) if levels else (float("nan"), float("nan"))
    text = (
        f"{where} no block is out of line at its own inputs, but the error grows with depth, from {number(first)} at "
        f"the first block to {number(last)} at the output. That is {_digits(settings)} rounding compounding, not a "
        "fault of one block."
    )
    return Verdict(Cause.PRECISION_COMPOUNDING, True, text, advice.default(Cause.PRECISION_COMPOUNDING))
