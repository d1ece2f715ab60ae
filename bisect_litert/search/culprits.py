"""The search: which blocks are wrong at their own inputs, and which ruin the digits they are given.

Pure functions over readings; nothing here runs a model or prints. docs/thresholds.md says where each number comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan

from bisect_litert.block_record import Comparison
from bisect_litert.measuring.limits import FP16_UNIT, out_of_line
from bisect_litert.record import Settings
from bisect_litert.vocabulary import Cause

STEPS = 3.0
"""Times a tensor's step that two honest devices may be apart, whatever their precision."""
UNEXPLAINED = 1e-2
"""Local relative L2 error that no digits fp16 loses in a block come to, long sums apart; the default of
`Settings.output_limit`."""
NO_SHARE = 0.1
"""Part of a block's error up to which another run's error there is not the same fault."""
HINT = 3.0
"""Times what storing costs that a block in line is off before a run in fp32 is spent on it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured at one tensor of one block call. The order of a sequence of readings is that of the data
    flow."""

    tap: str
    block: str
    parents: tuple[str, ...]
    """Taps this one follows from directly."""
    cumulative: Comparison | None
    """Target against torch."""
    local: Comparison | None
    """Target against torch at the target's own inputs."""
    expected: Comparison | None
    """The rounding-only run's local error: 11 bits, unlimited range."""
    half: Comparison | None
    """The fp16-emulated run's local error: 11 bits and fp16's range."""
    allowance: float = 1.0
    cpu: Comparison | None = None
    """The CPU run's local error."""
    fp32_cost: float = 0.0
    """Local relative L2 error of torch in fp32 against fp64."""
    step: float = 0.0
    """Relative L2 error that two honest devices may differ by whatever their precision: of rounding to the steps of the
    integers that it or its weights are stored as, or of LiteRT's own CPU kernels among themselves; 0 where none of
    these is known."""
    fp32: Comparison | None = None
    """The gpu-fp32 run's local error; None until that control was run."""
    fp32_ran: bool = False
    uncontrolled: bool = False
    """Whether the gpu-fp32 control was wanted and could not be run."""
    accumulated: float = 0.0
    """Largest sum of magnitudes inside an accumulating op of the block, 0 when not looked at."""
    output: bool = False
    """Whether this is a model output rather than a tap inside."""
    healed: bool = False
    """Whether what reads this tap was given torch's value instead."""

    @property
    def cost(self) -> float:
        """Local relative L2 error that fp16's digits cost here, at least half a unit in the last place, or half a step
        of a quantised tensor, to which two honest devices may round differently."""
        known = self.expected.relative_l2 if self.expected else FP16_UNIT
        return max(known if isfinite(known) else FP16_UNIT, FP16_UNIT, self.step)

    @property
    def noise(self) -> bool:
        """Whether the reference holds no digit here (measuring/noise.py)."""
        return self.cumulative is not None and self.cumulative.terms > 0

    @property
    def ratio(self) -> float:
        """Local error over its cost; nan when there is nothing to compare."""
        return self.local.relative_l2 / self.cost if self.local else float("nan")

    @property
    def level(self) -> float:
        """Local relative L2 error; inf when something is not finite, nan when it was not measured."""
        if self.local is None:
            return float("nan")
        return self.local.relative_l2 if self.local.finite_agreement else float("inf")


def limit(reading: Reading, settings: Settings) -> float:
    """Largest local relative L2 error that an honest fp16 device may show at a block.

    `ratio_limit` times what rounding costs; more where long sums may be accumulated in fp16, but never more than a
    model output may be off.
    """
    honest = max(settings.ratio_limit * reading.cost, min(2 * reading.allowance * reading.cost, settings.output_limit))
    # In fp32 `expected` knows nothing of what fp32 itself costs.
    return max(honest, 100 * reading.fp32_cost) if settings.fp32 else honest


def faulty(reading: Reading, settings: Settings) -> bool:
    """Whether the target's block is wrong at its own inputs, beyond what fp16 costs."""
    return out_of_line(reading.local, limit(reading, settings))


def fp32_limit(reading: Reading, settings: Settings) -> float:
    """Largest local relative L2 error that an honest device may show at a block in fp32.

    Rounding adds up differently in every implementation, so what it costs torch tells the order of magnitude. What
    integers cost, in weights or activations, is in every run alike and is no rounding of fp32's.
    """
    return max(settings.conversion_limit, 100 * reading.fp32_cost, STEPS * reading.step)


def misconverted(reading: Reading, settings: Settings) -> bool:
    """Whether the .tflite computes something else than torch on the CPU, beyond what fp32 costs."""
    return out_of_line(reading.cpu, fp32_limit(reading, settings))


def leaves_range(reading: Reading, settings: Settings) -> bool:
    """Whether fp16's range, and not its digits, is what the block loses: emulated fp16 is off where unlimited range
    is not."""
    return out_of_line(reading.half, limit(reading, settings)) or reading.accumulated > 65504.0


def cause_of(reading: Reading, settings: Settings) -> Cause | None:
    """Names the cause of a faulty or misconverted block; None when it is neither.

    The gpu-fp32 control tells a wrong kernel from what fp16 does. Where the runtime has no fp32 to offer, an error that
    neither range nor digits nor long sums explain on the CPU is laid to the kernel too.
    """
    if misconverted(reading, settings) and not _beside_the_fault(reading, settings):
        return Cause.CONVERSION
    if not faulty(reading, settings):
        return None
    if reading.fp32_ran and shares_fault(reading, settings):
        return Cause.WRONG_KERNEL
    if reading.uncontrolled and _unexplained(reading, settings):
        return Cause.WRONG_KERNEL
    return Cause.OVERFLOW if leaves_range(reading, settings) else Cause.PRECISION_LOSS


def _beside_the_fault(reading: Reading, settings: Settings) -> bool:
    """Whether a conversion costs less than fp16's digits do and is no share of what the target makes of the block."""
    cpu, local = reading.cpu, reading.local
    if cpu is None or local is None or not faulty(reading, settings):
        return False
    return cpu.finite_agreement and cpu.relative_l2 < reading.cost and cpu.relative_l2 <= NO_SHARE * local.relative_l2


def _unexplained(reading: Reading, settings: Settings) -> bool:
    """Whether nothing that fp16 does, as far as it can be worked out on the CPU, explains a block's error."""
    # The allowance is what a sum costs when its errors cancel as chance has it; when they do not it is the square.
    honest = max(2 * reading.allowance**2 * reading.cost, UNEXPLAINED, settings.output_limit)
    return not leaves_range(reading, settings) and out_of_line(reading.local, honest)


def shares_fault(reading: Reading, settings: Settings) -> bool:
    """Whether the fp32 run shows the fault as well: non-finite too, or off by a good part of it."""
    if reading.fp32 is None or reading.local is None:
        return False
    if not reading.fp32.finite_agreement:
        return True
    if not out_of_line(reading.fp32, fp32_limit(reading, settings)):
        return False
    # fp32 arithmetic differs from torch's too (fast exp, sin of large numbers); a share of the fault is what makes it
    # the same one.
    return not small_beside(reading.fp32, reading.local)


def small_beside(fp32: Comparison, local: Comparison) -> bool:
    """Whether an error in fp32 is no share of the error in fp16; beside one that is not finite it has to be finite."""
    return fp32.finite_agreement and local.finite_agreement and fp32.relative_l2 <= NO_SHARE * local.relative_l2


def find_faults(readings: Sequence[Reading], settings: Settings) -> list[str]:
    """Returns the blocks that are wrong at their own inputs, in data flow order."""
    return list(dict.fromkeys(r.block for r in readings if faulty(r, settings) or misconverted(r, settings)))


def amplification(reading: Reading, cumulative: Mapping[str, float]) -> float:
    """Cumulative error after a block over the largest one before it; half an fp16 unit is the least that counts."""
    after = _level(reading.cumulative)
    before = max([FP16_UNIT, *(cumulative.get(p, 0.0) for p in reading.parents)])
    return after / before


def _level(comparison: Comparison | None) -> float:
    if comparison is None or isnan(comparison.relative_l2):
        return float("nan")
    return max(comparison.relative_l2, FP16_UNIT)


def _cancelled(reading: Reading, known: Mapping[str, Reading]) -> Reading:
    """Where noise was made that shows in a block: the digits were lost there, where it is in line beside its terms."""
    while (behind := next((known[p] for p in reading.parents if p in known and known[p].noise), None)) is not None:
        reading = behind
    return reading


class Upstream:
    """For each block, the blocks its outputs follow from, directly or not.

    As bits of a number: the names themselves would be as many as the square of a chain's length.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        by_tap = {r.tap: r.block for r in readings}
        self._bits = {block: 1 << i for i, block in enumerate(dict.fromkeys(r.block for r in readings))}
        taps: dict[str, int] = {}
        for r in readings:
            before = 0
            for parent in r.parents:
                before |= taps.get(parent, 0) | (self._bits[by_tap[parent]] if parent in by_tap else 0)
            taps[r.tap] = before
        self._before = dict.fromkeys(self._bits, 0)
        for r in readings:
            self._before[r.block] |= taps[r.tap] & ~self._bits[r.block]

    def follows(self, block: str, others: Iterable[str]) -> bool:
        """Whether a block follows from any of the others; none does from itself."""
        before = self._before.get(block, 0)
        return any(before & self._bits.get(other, 0) for other in others)


def hints_at_range(reading: Reading) -> bool:
    """Whether the range, though it keeps a block's error below the limit, costs more than the digits do.

    Emulated fp16 and the rounding-only run differ in nothing but the range. Where the first is off by twice what the
    second is, and the target by as much, something inside left the range; a skip path or a saturating function hides
    it.
    """
    half, local = reading.half, reading.local
    if half is None or local is None or not half.finite_agreement or not local.finite_agreement:
        return False
    rounding = reading.expected.relative_l2 if reading.expected else FP16_UNIT
    return half.relative_l2 > 2 * max(rounding, FP16_UNIT / 2) and local.relative_l2 > half.relative_l2 / 2


def asks_for_fp32(reading: Reading, settings: Settings) -> bool:
    """Whether a block that is in line is off by more than storing its tensors costs.

    A long sum may explain that, or a wrong kernel in a branch that a skip path outweighs. A run in fp32 tells.
    """
    local = reading.local
    if settings.fp32 or local is None or not local.finite_agreement:
        return False
    rounding = reading.expected.relative_l2 if reading.expected else FP16_UNIT
    return local.relative_l2 > HINT * max(rounding, FP16_UNIT / 2)


def quietly_wrong(reading: Reading, settings: Settings) -> bool:
    """Whether a kernel is wrong inside a block that is in line: in fp32 most of its error is still there, and is no
    rounding of fp32's. Where fp16 costs the block much, that is seen by the size of the error in fp32."""
    fp32, local = reading.fp32, reading.local
    if fp32 is None or local is None or settings.fp32 or misconverted(reading, settings):
        return False
    if not local.finite_agreement or not fp32.finite_agreement:
        return False
    if not asks_for_fp32(reading, settings) and fp32.relative_l2 <= settings.output_limit:
        return False
    return out_of_line(fp32, fp32_limit(reading, settings)) and fp32.relative_l2 > local.relative_l2 / 2


def find_loss(readings: Sequence[Reading], settings: Settings, off_by: float | None = None) -> tuple[list[str], bool]:
    """Explains model outputs that are out of line though no block is faulty.

    A block loses digits in a jump when it amplifies the error `jump_limit` times, to a level of its own that explains
    a good part of the outputs' error.

    Args:
        readings: In data flow order.
        settings: The thresholds.
        off_by: How far an output is off, where that was measured otherwise; None means that the readings tell.

    Returns:
        The block with the largest jump, if any, and whether an output is out of line at all. No block though an
        output is out of line means that the error compounds.
    """
    outputs = [r for r in readings if r.output and out_of_line(r.cumulative, settings.output_limit)]
    if off_by is None:
        if not outputs:
            return [], False
        levels_out = [r.cumulative.relative_l2 for r in outputs if r.cumulative is not None]
        off_by = max((v for v in levels_out if isfinite(v)), default=float("inf"))
    needed = min(settings.output_limit, off_by / 3)
    levels: dict[str, float] = {}
    jumps: list[tuple[float, str]] = []
    known = {r.tap: r for r in readings}
    for r in readings:
        level = _level(r.cumulative)
        if r.healed:
            level = FP16_UNIT
        elif isnan(level):
            # Untapped: what it hands on is what it was given.
            level = max([FP16_UNIT, *(levels.get(p, 0.0) for p in r.parents)])
        elif (jump := amplification(r, levels)) >= settings.jump_limit and level > needed:
            jumps.append((jump, _cancelled(r, known).block))
        levels[r.tap] = level
    return ([max(jumps, key=lambda j: j[0])[1]] if jumps else []), True
