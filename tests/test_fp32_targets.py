"""The same faults judged in fp32, on the GPU and on the CPU: what remains of them there, and what it is called."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from small_models import numbers
from test_bisection import Norm, Resize, Table, chain
from torch import nn

from bisect_litert import bisect
from bisect_litert.graphs.conversion import convert
from bisect_litert.record import RunRecord
from bisect_litert.reports import markdown
from bisect_litert.reports.outcome import is_emulated
from bisect_litert.vocabulary import Cause, RunName


def overflow() -> tuple[nn.Module, torch.Tensor]:
    return chain(nn.Linear(16, 16), Norm(1000.0), nn.Linear(16, 16)), numbers(1, 4, 16)


def mask() -> tuple[nn.Module, torch.Tensor]:
    return chain(nn.Linear(16, 16), Table(4), nn.Linear(16, 16)), numbers(4, 16)


def resize() -> tuple[nn.Module, torch.Tensor]:
    return chain(nn.Linear(16, 16), Resize(), nn.Linear(63, 63)), numbers(1, 4, 16)


def gpu_in_fp32(model: nn.Module, inputs: torch.Tensor) -> RunRecord:
    record = bisect(model, inputs, fp32=True)
    if record.target != "gpu-fp32":
        pytest.skip("no GPU adapter here")
    return record


def test_fp32_on_the_gpu_knows_no_overflow() -> None:
    record = gpu_in_fp32(*overflow())
    assert (record.verdict.cause, record.culprits) == (Cause.NONE, ())
    assert record.judged is RunName.GPU_FP32
    # What fp16 would cost has no place in it.
    assert not {RunName.FP16, RunName.GPU} & record.blocks[0].errors.keys()
    assert all(o.comparison and o.comparison.relative_l2 < 1e-5 for o in record.outputs)


def test_a_wrong_kernel_is_wrong_in_fp32_too() -> None:
    record = gpu_in_fp32(*mask())
    assert [(c.block, c.cause) for c in record.culprits] == [("1", Cause.WRONG_KERNEL)]
    assert "fp16" not in record.verdict.summary
    assert record.culprits[0].op >= 0
    assert "GPU in fp32" in markdown.render(record)


def test_on_the_cpu_only_the_conversion_can_be_at_fault() -> None:
    for model, found in ((overflow(), []), (mask(), []), (resize(), [("1", Cause.CONVERSION)])):
        record = bisect(*model, fp32=True, no_gpu=True)
        assert (record.target, record.judged) == ("cpu, no GPU", RunName.CPU)
        assert [(c.block, c.cause) for c in record.culprits] == found
        assert is_emulated(record)
        assert "emulated" not in record.verdict.summary


def test_what_fp16_loses_is_not_held_against_fp32() -> None:
    class Chaos(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x * 3000.0)

    model, inputs = chain(nn.Linear(16, 16), Chaos()), numbers(1, 4, 16)
    assert bisect(model, inputs, no_gpu=True).verdict.cause is Cause.PRECISION_LOSS
    assert bisect(model, inputs, no_gpu=True, fp32=True).verdict.cause is Cause.NONE


def test_the_record_names_the_file_that_was_tested(tmp_path: Path) -> None:
    model, inputs = overflow()
    record = bisect(model, inputs, no_gpu=True)
    path = tmp_path / "model.tflite"
    convert(model, (inputs,), {}, path, tmp_path / "log")
    assert record.artefact is not None
    assert record.artefact.size == path.stat().st_size
    assert record.artefact.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
