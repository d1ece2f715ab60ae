"""What a record comes down to: the exit code, one headline, and which of its runs was under test."""

from __future__ import annotations

from bisect_litert.block_record import BlockResult, Comparison
from bisect_litert.errors import ExitCode
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import PYTORCH, Cause, RunName

EMULATED = "emulated fp16, no GPU"
PREDICTED = "predicted from torch, no GPU"

_NOT_TESTED = (Cause.CANNOT_TEST, Cause.CPU_FALLBACK, Cause.REFERENCE)

_HEADLINES = {
    Cause.NONE: "no divergence",
    Cause.PRECISION_COMPOUNDING: "precision compounding",
    Cause.PRECISION_LOSS: "precision loss",
    Cause.WRONG_KERNEL: "wrong kernel",
    Cause.CONVERSION: "conversion changed the result",
    Cause.TAP_EFFECT: "the taps change the result",
    Cause.ALIASED_OUTPUT: "aliased output",
    Cause.UNWRITTEN_OUTPUT: "unwritten output",
    Cause.REJECTED: "ops rejected by the GPU",
    Cause.CPU_FALLBACK: "nothing ran on the GPU",
    Cause.REFERENCE: "torch cannot serve as the reference",
    Cause.CANNOT_TEST: "cannot test",
}


def exit_code(record: RunRecord) -> ExitCode:
    """Returns the code the process ends with: 1 diverged, 125 not tested, 0 no divergence."""
    if record.verdict.diverged:
        return ExitCode.DIVERGED
    if record.verdict.cause in _NOT_TESTED:
        return ExitCode.CANNOT_TEST
    if record.verdict.cause in (Cause.CRASH, Cause.HANG, Cause.REJECTED) and not anything_tested(record):
        return ExitCode.CANNOT_TEST
    return ExitCode.OK


def anything_tested(record: RunRecord) -> bool:
    """Whether the run under test gave at least one tensor that could be compared."""
    return any(o.comparison or o.untapped for o in record.outputs) or any(on_target(record, b) for b in record.blocks)


def truth_name(record: RunRecord) -> str:
    """Returns what blocks are held against, as tables call it: "torch" or "LiteRT CPU"."""
    return "torch" if record.reference == PYTORCH else record.reference


def is_emulated(record: RunRecord) -> bool:
    """Whether the emulated run stood in for a GPU."""
    return record.judged not in (RunName.GPU, RunName.GPU_FP32)


def target_words(record: RunRecord) -> str:
    """Returns what was judged, for titles."""
    return {RunName.GPU: "GPU", RunName.GPU_FP32: "GPU in fp32"}.get(record.judged, record.target)


def target_run(record: RunRecord) -> RunName:
    """Returns the run that was judged."""
    return record.judged


def on_target(record: RunRecord, block: BlockResult) -> Comparison | None:
    """Returns the block's cumulative comparison in the run under test, none where it has no tap."""
    errors = block.errors.get(target_run(record))
    return errors.cumulative if errors else None


def local_on_target(record: RunRecord, block: BlockResult) -> Comparison | None:
    """Returns the block's local comparison in the run under test, none where it has none."""
    errors = block.errors.get(target_run(record))
    return errors.local if errors else None


def cause_words(cause: Cause, kind: str = "") -> str:
    """Returns a cause as words: "overflow (underflow)"."""
    words = _HEADLINES.get(cause, cause.value)
    return f"{words} ({kind})" if kind else words


def headline(record: RunRecord) -> str:
    """Returns the verdict in a few words: "overflow in enc.b3", "overflow in enc.b3 and 2 more"."""
    verdict = record.verdict
    first = record.culprits[0] if record.culprits else None
    words = cause_words(verdict.cause, first.kind if first and first.cause is verdict.cause else "")
    if first is None:
        return words
    more = f" and {len(record.culprits) - 1} more" if len(record.culprits) > 1 else ""
    return f"{words} in {first.block}{more}"
