"""Which code a run comes to, and which one an error or a dead process does, by where it happened."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
import sample_record

from bisect_litert.errors import (
    BisectError,
    BlockSelectionError,
    ConversionError,
    InputsError,
    ModelFileError,
    RunFolderError,
    RunnerError,
    UnfitReferenceError,
    UsageError,
)
from bisect_litert.matrix import states
from bisect_litert.matrix.plan import KNOWN_TARGETS
from bisect_litert.matrix.table import Code
from bisect_litert.record import OutputResult, Placement, Refusal, RunRecord
from bisect_litert.vocabulary import Cause

GPU, EMULATED = KNOWN_TARGETS["gpu"], KNOWN_TARGETS["emulated"]


def verdict(record: RunRecord, cause: Cause, diverged: bool) -> RunRecord:
    return replace(record, verdict=replace(record.verdict, cause=cause, diverged=diverged))


def placed(record: RunRecord, gpu: int, cpu: int) -> RunRecord:
    return replace(record, placement=Placement("Mali", gpu, cpu, f"{gpu} of {gpu + cpu}"))


@pytest.mark.parametrize(
    ("cause", "diverged", "gpu", "cpu", "code", "exit_code"),
    [
        (Cause.NONE, False, 10, 0, Code.OK, 0),
        (Cause.NONE, False, 7, 3, Code.PARTIAL, 0),
        (Cause.TAP_EFFECT, False, 10, 0, Code.OK, 0),  # the model as it ships is right
        (Cause.TAP_EFFECT, True, 10, 0, Code.DIFF, 1),
        (Cause.OVERFLOW, True, 7, 3, Code.DIFF, 1),
        (Cause.CONVERSION, True, 10, 0, Code.DIFF, 1),
        (Cause.PRECISION_COMPOUNDING, True, 10, 0, Code.DIFF, 1),
        (Cause.CPU_FALLBACK, False, 0, 10, Code.REJECT, 125),
        (Cause.REJECTED, True, 7, 3, Code.REJECT, 1),
        (Cause.CRASH, True, 10, 0, Code.T_FAIL, 1),
        (Cause.HANG, True, 10, 0, Code.T_FAIL, 1),
        (Cause.REFERENCE, False, 0, 0, Code.L_FAIL, 125),
    ],
)
def test_the_code_of_a_run(cause: Cause, diverged: bool, gpu: int, cpu: int, code: Code, exit_code: int) -> None:
    record = placed(verdict(sample_record.healthy(), cause, diverged), gpu, cpu)
    cell = states.from_record("m", GPU, record)
    assert (cell.code, cell.exit_code, cell.cause) == (code, exit_code, cause)
    assert (cell.gpu_ops, cell.ops) == (gpu, gpu + cpu)


def test_a_run_with_a_culprit() -> None:
    record = sample_record.overflow()
    cell = states.from_record("m", GPU, record)
    first = record.culprits[0]
    assert (cell.code, cell.block, cell.more) == (Code.DIFF, first.block, len(record.culprits) - 1)
    assert cell.summary == record.verdict.summary
    assert first.source in cell.where
    assert cell.device == record.placement.adapter


def test_what_the_gpu_refused_is_kept_short() -> None:
    refusals = tuple(Refusal(f"OP_{i}", "too many axes.", i) for i in range(1, 12))
    record = replace(sample_record.healthy(), placement=Placement("Mali", 3, 66, "3 of 69", refusals))
    cell = states.from_record("m", GPU, record)
    assert cell.refused.startswith("OP_1 x1: too many axes; OP_2 x2")
    assert cell.refused.endswith("OP_8 x8: too many axes; 3 more")


def test_what_stood_in_for_a_gpu_is_no_verdict_on_it() -> None:
    note = "No adapters found. The emulated fp16 run stands in for the GPU."
    record = replace(sample_record.overflow(), target="emulated fp16, no GPU")
    record = replace(record, verdict=replace(record.verdict, notes=("a note", note)))
    cell = states.from_record("m", GPU, record)
    assert (cell.code, cell.cause, cell.block, cell.summary) == (Code.T_SKIP, Cause.NONE, "", note)
    assert (cell.exit_code, cell.device) == (125, "")
    assert cell.relative_l2 != cell.relative_l2
    assert states.from_record("m", EMULATED, record).code is Code.DIFF


def test_the_worst_output_is_shown_as_it_ships() -> None:
    base = sample_record.healthy()
    some = next(o.comparison for o in base.outputs if o.comparison)
    calm, off = replace(some, relative_l2=1e-3), replace(some, relative_l2=0.3, correlation=0.5)
    broken = replace(some, relative_l2=1e-4, new_nonfinite=4)
    outputs = (OutputResult("a", off, untapped=calm), OutputResult("b", replace(calm, relative_l2=2e-3)))
    assert states.from_record("m", GPU, replace(base, outputs=outputs)).relative_l2 == 2e-3
    # What is not finite is worse than anything that is, and so is what cannot be compared.
    cell = states.from_record("m", GPU, replace(base, outputs=(OutputResult("a", off), OutputResult("b", broken))))
    assert cell.nonfinite == 4
    nothing = replace(some, relative_l2=nan)
    outputs = (OutputResult("a", off), OutputResult("b", nothing))
    assert states.from_record("m", GPU, replace(base, outputs=outputs)).relative_l2 != 0.3


@pytest.mark.parametrize(
    ("stage", "error", "code"),
    [
        (states.BETWEEN, ModelFileError("x"), Code.L_FAIL),
        ("load model", ModelFileError("x"), Code.L_FAIL),
        ("load model", ConversionError("x"), Code.L_FAIL),  # whatever it is called, nothing was converted yet
        (states.BETWEEN, BlockSelectionError("x"), Code.L_FAIL),
        ("load model", InputsError("x"), Code.L_FAIL),
        ("torch", UnfitReferenceError("x"), Code.L_FAIL),
        ("torch", BisectError("x"), Code.L_FAIL),
        ("convert", ConversionError("x"), Code.C_FAIL),
        ("convert", BisectError("x"), Code.C_FAIL),
        ("find taps", ConversionError("x"), Code.C_FAIL),
        (states.BETWEEN, ConversionError("x"), Code.C_FAIL),
        (states.BETWEEN, UsageError("no such runtime"), Code.T_SKIP),
        (states.BETWEEN, RunnerError("no such host"), Code.T_SKIP),
        (states.BETWEEN, RunFolderError("disk"), Code.T_FAIL),
        ("run gpu", RunnerError("x"), Code.T_FAIL),
        ("search", BisectError("x"), Code.T_FAIL),
    ],
)
def test_the_code_of_an_error(stage: str, error: BisectError, code: Code) -> None:
    cell = states.from_error("m", GPU, stage, error)
    assert (cell.code, cell.exit_code) == (code, 125)
    assert cell.summary.startswith(error.message)


@pytest.mark.parametrize(
    ("stage", "how", "code", "cause"),
    [
        ("load model", "signal SIGKILL", Code.L_FAIL, Cause.CANNOT_TEST),
        ("torch", "no end after 9 s", Code.L_FAIL, Cause.CANNOT_TEST),
        ("convert", "signal SIGABRT", Code.C_FAIL, Cause.CANNOT_TEST),
        ("run gpu", "signal SIGSEGV", Code.T_FAIL, Cause.CRASH),
        ("search", "no end after 9 s", Code.T_FAIL, Cause.HANG),
    ],
)
def test_the_code_of_a_death(stage: str, how: str, code: Code, cause: Cause) -> None:
    cell = states.from_end("m", GPU, stage, how)
    assert (cell.code, cell.cause) == (code, cause)
    assert how in cell.summary


def test_the_stages_are_those_of_a_run() -> None:
    """The codes hang on stage names, which are written elsewhere."""
    from pathlib import Path

    package = Path(states.__file__).parent.parent
    text = "".join(
        (package / name).read_text() for name in ("entrances.py", "bisection.py", "subjects/torch_subject.py")
    )
    for name in (*states.LOADING, *states.CONVERTING):
        assert f'"{name}"' in text
