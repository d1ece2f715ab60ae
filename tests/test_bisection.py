"""The whole job on the real delegate, where there is one, and emulated: planted faults, named with their causes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import Block, numbers
from torch import nn

from bisect_litert import bisect, bisection
from bisect_litert.errors import BlockSelectionError, ConversionError, UnfitReferenceError
from bisect_litert.record import RunRecord
from bisect_litert.request import Interrupted, Progress
from bisect_litert.vocabulary import Cause, Mark, RunName


class Norm(nn.Module):
    """A layer norm written out; its squares leave fp16's range where `scale` is large."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


class Table(nn.Module):
    """Adds a constant of the same rank, of which the delegate reads the first row only."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.register_buffer("table", numbers(tokens, 16, seed=5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.table)


class Position(nn.Module):
    """Adds an offset that leaves no digits of its input in fp16, and takes it away again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 2000.3) * 1.0003 - 2000.9


class Resize(nn.Module):
    """To an odd size, which the converter gets wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x.reshape(1, 4, 4, -1), size=(7, 9), mode="nearest").reshape(1, 4, -1)


class Squares(nn.Module):
    """Leaves the range inside; the converter moves the last factor into the weights of a Linear behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 3000 + x.square() * 9000) * 1e-4


class Hash(nn.Module):
    """A remainder of large numbers, behind which the converter moves the factor likewise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x * 777.0, 16.0) * 0.1


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.fc(x))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class QuietTable(Table):
    """The same in a branch that a skip path outweighs: the block is off by a thousandth."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2e-3 * super().forward(x)


def chain(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*blocks).eval()


def on_gpu(model: nn.Module, inputs: Any, **options: Any) -> RunRecord:
    record = bisect(model, inputs, **options)
    if record.target != "gpu":
        pytest.skip("no GPU here")
    return record


def found(record: RunRecord) -> list[tuple[str, Cause]]:
    return [(c.block, c.cause) for c in record.culprits]


@pytest.mark.parametrize("seed", [0, 7])
def test_what_reads_a_culprits_inside_past_its_end_is_no_culprit(seed: int) -> None:
    torch.manual_seed(seed)  # with 7, the reader looks like a second culprit until it is healed
    model = chain(Tanh(), Squares(), Tanh(), Hash(), Tanh())
    record = on_gpu(model, numbers(1, 12, 16) * 2)
    assert found(record) == [("1", Cause.OVERFLOW), ("3", Cause.PRECISION_LOSS)]
    assert {b.name: b.mark for b in record.blocks}["2"] is Mark.AFTER
    assert [c.hidden for c in record.culprits] == [False, True]


def test_a_run_that_the_gpu_drops_is_laid_to_the_op_whose_commands_it_refuses() -> None:
    # Two channels to a group: the delegate binds an empty buffer, and the GPU drops the whole run without an error.
    model = chain(nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=3), nn.Conv2d(6, 6, 3, padding=1))
    told: list[Progress] = []
    record = on_gpu(model, numbers(1, 6, 8, 8), on_progress=told.append)
    assert found(record) == [("1", Cause.WRONG_KERNEL)]
    assert not any(p.found for p in told)  # at first sight every block is wrong
    (culprit,) = record.culprits
    assert "refuses" in culprit.evidence[0]
    assert "every output is right" in culprit.proof[0]
    assert [b.mark for b in record.blocks] == [Mark.UNKNOWN, Mark.CULPRIT, Mark.UNKNOWN]


def test_what_only_a_second_conversion_does_is_not_held_against_the_model() -> None:
    # The converter folds the norm into the convolution, whose own result would leave the range. Tapping it between
    # the two takes a conversion in which they stay apart.
    large, norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    model = chain(nn.Conv2d(4, 4, 3, padding=1), large, norm, nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    with torch.no_grad():
        large.weight.mul_(4e5)
        norm.running_var.fill_(1.6e11)
    record = on_gpu(model, numbers(1, 4, 8, 8))
    assert (record.verdict.cause, record.verdict.diverged, found(record)) == (Cause.NONE, False, [])
    assert "second conversion" in " ".join(record.verdict.notes)
    marks = {b.name: b.mark for b in record.blocks}
    assert (marks["1"], marks["3"]) == (Mark.UNTAPPED, Mark.OK)


def test_a_wrong_kernel_that_a_skip_path_outweighs_is_named() -> None:
    record = on_gpu(chain(Block(16), QuietTable(12), Block(16)), numbers(12, 16))
    assert found(record) == [("1", Cause.WRONG_KERNEL)]
    (culprit,) = record.culprits
    assert culprit.ops[culprit.op - culprit.ops[0].index].type == "ADD"
    assert max(o.comparison.relative_l2 for o in record.outputs if o.comparison) < record.settings.output_limit


class Choose(nn.Module):
    """The largest of numbers that fp16 cannot tell apart, by its place."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.offset).argmax(-1)


def test_integers_that_a_model_returns_are_compared_as_they_are() -> None:
    record = on_gpu(chain(Block(16), Choose(3000.0)), numbers(2, 32, 16))
    assert found(record) == [("1", Cause.PRECISION_LOSS)]
    (output,) = record.outputs
    assert output.comparison is not None
    assert 0.3 < output.comparison.relative_l2 < 1
    assert found(on_gpu(chain(Block(16), Choose(0.0)), numbers(2, 32, 16))) == []


def test_what_only_a_tap_reads_is_not_held_against_the_model() -> None:
    # The converter moves the factor into the weights behind it, so that the model never computes the product.
    small = nn.Linear(16, 16)
    model = chain(Tanh(), Times(2e5), small, Tanh())
    with torch.no_grad():
        small.weight.mul_(5e-6)
    record = on_gpu(model, numbers(1, 12, 16))
    assert (record.verdict.cause, record.verdict.diverged, found(record)) == (Cause.NONE, False, [])
    assert {b.name: b.mark for b in record.blocks}["1"] is Mark.NOTE
    # Where something reads it, it is the model's.
    assert found(on_gpu(chain(Tanh(), Times(2e5), nn.Softmax(-1)), numbers(1, 12, 16))) == [("1", Cause.OVERFLOW)]


def test_overflow_on_the_gpu_and_what_it_hid() -> None:
    model = chain(Block(16), Norm(1e4), Block(16), Norm(1e4), Block(16))
    told: list[Progress] = []
    record = on_gpu(model, numbers(2, 6, 16), on_progress=told.append)
    assert found(record) == [("1", Cause.OVERFLOW), ("3", Cause.OVERFLOW)]
    # The first is named before the runs that say why.
    (first,) = [p.found for p in told if p.found]
    assert first.startswith("First look: On the GPU, 1 is the first to be wrong at its own inputs:")
    assert any(p.stage.startswith("run gpu-fp32") for p in told[[p.found for p in told].index(first) :])
    assert record.verdict.diverged
    assert "65504" in record.culprits[0].evidence[0]
    assert {r.name for r in record.runs} >= {"torch", "cpu", "fp16", "gpu", "gpu-fp32"}
    # The emulated run comes to the same without a GPU, and says that it had none.
    alone = bisect(model, numbers(2, 6, 16), no_gpu=True)
    assert found(alone) == found(record)
    assert alone.target == "emulated fp16, no GPU"
    assert "emulated" in alone.verdict.summary
    assert not any(r.name.startswith("gpu") and r.status == "ok" for r in alone.runs)


def test_wrong_kernel_on_the_gpu() -> None:
    model = chain(Block(16), Table(6), Block(16))
    record = on_gpu(model, numbers(6, 16))
    assert found(record) == [("1", Cause.WRONG_KERNEL)]
    assert bisect(model, numbers(6, 16), no_gpu=True).verdict.cause is Cause.NONE


def test_precision_loss() -> None:
    record = bisect(chain(Block(16), Position(), Block(16)), numbers(2, 6, 16), no_gpu=True)
    assert found(record) == [("1", Cause.PRECISION_LOSS)]
    assert record.verdict.diverged


def test_conversion() -> None:
    record = bisect(chain(Block(16), Resize(), nn.Linear(63, 63)), numbers(1, 4, 16), no_gpu=True)
    assert found(record) == [("1", Cause.CONVERSION)]
    assert "CPU" in record.culprits[0].evidence[0]


class Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x)


def test_what_cannot_be_tested_says_why() -> None:
    with pytest.raises((ConversionError, UnfitReferenceError)) as caught:
        bisect(Complex(), numbers(2, 16), no_gpu=True)
    assert caught.value.hint
    with pytest.raises(UnfitReferenceError, match="NaN"):
        bisect(chain(nn.Linear(4, 4), Log()), -numbers(2, 4).abs() - 10, no_gpu=True)
    with pytest.raises(BlockSelectionError):
        bisect(chain(Block(16)), numbers(2, 16), blocks="nothing.*", no_gpu=True)


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(-x.abs() - 1)


def test_ctrl_c_while_the_gpu_runs_keeps_what_had_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bisection, "choose_taps", stopped)
    model = chain(Block(16), Norm(3000.0), Block(16))
    with pytest.raises(Interrupted) as caught:
        bisect(model, (numbers(1, 4, 16, seed=1),))
    record = caught.value.record
    assert record.verdict.cause is Cause.CANNOT_TEST
    for block in record.blocks:
        assert set(block.errors) == {RunName.CPU, RunName.FP16}
        assert block.errors[RunName.CPU].cumulative.relative_l2 < 1e-5
        assert block.mark is not Mark.OK  # nothing was judged
    assert any(note.startswith("Ended before that: emulated fp16, ") for note in record.verdict.notes)
