"""From block to op to line on the real delegate: the op, the module, the user's line, the proof, the confidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from bisect_litert import bisect
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.vocabulary import Cause, Mark

HERE = Path(__file__).name


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.fc(x))


class LoudNorm(nn.Module):
    """Its LayerNorm is given values in the thousands."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loud = x * 2000.0
        return self.norm(loud)


class Scores(nn.Module):
    """Attention scores of eight heads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(1, 16, 8, 4).transpose(1, 2)
        return heads @ heads.transpose(-1, -2) * 0.25


class Mask(nn.Module):
    """Adds a constant mask that broadcasts over heads: every head gets what head 0 gets."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.triu(torch.full((1, 1, 16, 16), -10000.0), 1))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + self.mask


class Phase(nn.Module):
    """Loses its digits in a large factor, not in the sine that shows it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = x * 9000.0
        return torch.sin(angle)


class PaddedPool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(x, 3, 1, 1)


class Threshold(nn.Module):
    """Compares with a constant of many rows, of which the GPU reads the first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.linspace(-1, 1, 8)[:, None].repeat(1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > self.level, x, -0.5 * x)


class Gate(nn.Module):
    """A block of its own for the comparison; its output is made of booleans, which are not read back."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.keep, self.choose = Mlp(32), Keep(), Choose()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.choose(x, self.keep(x))


class Keep(Threshold):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x > self.level


class Choose(nn.Module):
    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.where(keep, x, -0.5 * x)


class Faint(nn.Module):
    """A skip path keeps what the branch makes of it below every limit."""

    def __init__(self, branch: nn.Module, share: float) -> None:
        super().__init__()
        self.branch, self.share = branch, share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 + self.share * self.branch(x)


class Floor(nn.Module):
    """The larger one of x and a constant of many rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("floor", torch.linspace(-1, 1, 8)[:, None].repeat(1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(torch.tanh(x), self.floor)


class Collapsing(nn.Module):
    """A skip path around a norm that is zero in fp16: what is left of it is the block's own input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loud = x * 900
        return x + loud * torch.rsqrt(loud.pow(2).mean(-1, keepdim=True) + 1e-6)


class Fused(nn.Module):
    """A sum of sums that is read by a mean and returned, beside a collapsed norm that is returned and read as well."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.sum, self.norm, self.after = Mlp(32), nn.Tanh(), Collapsing(), Mlp(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.before(x)
        total = before + self.sum(before)
        norm = self.norm(x)
        return total, total.mean(1), norm, self.after(norm)


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.5 * torch.sigmoid(self.gate(x)) * self.value(x)


class Averaged(nn.Module):
    """What its mean reads rightly comes back as zeros, or as another buffer's numbers: what that held decides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Gated(40), Gated(40), Gated(40)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.last(self.second(self.first(x)))
        return x, x.mean()


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.conv(x))


def run(blocks: list[nn.Module], *shape: int, switches: bool = True) -> RunRecord:
    torch.manual_seed(0)
    record = bisect(nn.Sequential(*blocks).eval(), torch.randn(*shape), switches=switches)
    if record.target != "gpu":
        pytest.skip("no GPU that LiteRT accepts")
    return record


def words(sentence: str) -> str:
    """A sentence without its measured numbers."""
    return re.sub(r"(within|off by) [\d.e-]*\d", r"\1 #", sentence)


def only(record: RunRecord, cause: Cause, block: str) -> Culprit:
    assert [(c.block, c.cause) for c in record.culprits] == [(block, cause)], record.verdict.summary
    return record.culprits[0]


def guilty(culprit: Culprit) -> str:
    return next(op.type for op in culprit.ops if op.index == culprit.op)


def test_an_overflow_is_driven_down_to_op_module_and_line() -> None:
    culprit = only(run([Mlp(32), LoudNorm(32), Mlp(32)], 1, 8, 32), Cause.OVERFLOW, "1")
    assert guilty(culprit) == "SQUARED_DIFFERENCE"
    assert culprit.module == "1.norm"
    assert culprit.source.startswith(f"{HERE}:")
    assert "return self.norm(loud)" in next(row for row in culprit.code.splitlines() if row.startswith(">"))
    assert [op.mark for op in culprit.ops].count(Mark.CULPRIT) == 1
    op = next(op for op in culprit.ops if op.index == culprit.op)
    assert op.local is not None
    assert op.local.new_nonfinite > 0
    assert op.reference_peak > 65504
    assert any("every output is right" in said for said in culprit.proof)
    assert culprit.confidence == "high"


def test_a_block_with_too_many_ops_is_named_and_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pricing", "inside"):
        monkeypatch.setattr(f"bisect_litert.search.{module}.MAX_OPS", 2)
    culprit = only(run([Mlp(32), LoudNorm(32), Mlp(32)], 1, 8, 32), Cause.OVERFLOW, "1")
    assert culprit.ops == ()
    assert any("too many to look into at once (2): choose smaller blocks" in said for said in culprit.evidence)


def test_a_wrong_kernel_is_an_op_and_comes_right_without_it() -> None:
    culprit = only(run([Mlp(32), Scores(), Mask(), nn.Softmax(-1)], 1, 16, 32), Cause.WRONG_KERNEL, "2")
    assert guilty(culprit) == "ADD"
    assert culprit.proof[0].startswith(f"With only op {culprit.op} kept off the GPU every output is right")
    assert culprit.upstream.startswith("google-ai-edge/LiteRT#")


def test_a_wrong_comparison_is_told_from_what_reads_it() -> None:
    culprit = only(run([Mlp(32), Threshold(), Mlp(32)], 8, 32), Cause.WRONG_KERNEL, "1")
    assert guilty(culprit) == "GREATER"
    assert culprit.proof[0].startswith(f"With only op {culprit.op} kept off the GPU every output is right")
    assert any("cannot be read back" in said for said in culprit.evidence)
    assert culprit.upstream.startswith("google-ai-edge/LiteRT#8619")


def test_a_block_of_booleans_is_blamed_for_its_own_op() -> None:
    torch.manual_seed(0)
    record = bisect(Gate().eval(), torch.randn(8, 32), blocks=("*",))
    if record.target != "gpu":
        pytest.skip("no GPU that LiteRT accepts")
    culprit = only(record, Cause.WRONG_KERNEL, "keep")
    assert guilty(culprit) == "GREATER"
    assert any("it showed at the output of choose" in said for said in culprit.evidence)


@pytest.mark.parametrize(
    ("branch", "share", "cause", "op"),
    [
        (Floor(), 6e-3, Cause.WRONG_KERNEL, "MAXIMUM"),
        (LoudNorm(32), 6e-3, Cause.OVERFLOW, "SQUARED_DIFFERENCE"),
    ],
)
def test_a_fault_that_a_skip_path_hides_is_found_inside_by_what_it_shows(
    branch: nn.Module, share: float, cause: Cause, op: str
) -> None:
    culprit = only(run([Mlp(32), Faint(branch, share), Mlp(32)], 8, 32), cause, "1")
    assert culprit.local < 4.88e-3  # below the limit
    assert guilty(culprit) == op
    assert culprit.region == ()
    assert not any("right when its ops are tapped" in said for said in culprit.evidence)


def test_a_buffer_is_told_from_a_branch_that_vanished() -> None:
    torch.manual_seed(0)
    record = bisect(Fused().eval(), torch.randn(1, 10, 32), blocks=("*",))
    if record.target != "gpu":
        pytest.skip("no GPU that LiteRT accepts")
    assert [(c.block, c.cause) for c in record.culprits] == [
        ("norm", Cause.OVERFLOW),
        ("(output)", Cause.ALIASED_OUTPUT),
    ], record.verdict.summary


def test_a_buffer_that_is_handed_back_empty_is_no_wrong_kernel() -> None:
    torch.manual_seed(0)
    record = bisect(Averaged().eval(), torch.randn(1, 10, 40), blocks=("*",))
    if record.target != "gpu":
        pytest.skip("no GPU that LiteRT accepts")
    (culprit,) = record.culprits
    assert culprit.block == "last"
    assert culprit.cause in (Cause.UNWRITTEN_OUTPUT, Cause.ALIASED_OUTPUT), record.verdict.summary


def test_lost_digits_are_blamed_on_the_op_that_loses_them() -> None:
    culprit = only(run([Mlp(32), Phase()], 1, 8, 32), Cause.PRECISION_LOSS, "1")
    assert guilty(culprit) == "MUL"
    contributions = {op.type: op.contribution for op in culprit.ops}
    assert contributions["MUL"] > 100 * contributions["SIN"]
    assert "angle = x * 9000.0" in culprit.code


def test_a_padded_pool_is_wrong_in_its_own_ops() -> None:
    culprit = only(run([Conv(), PaddedPool(), Conv()], 1, 4, 12, 12), Cause.WRONG_KERNEL, "1")
    assert guilty(culprit) in ("PAD", "AVERAGE_POOL_2D")


@pytest.mark.parametrize(
    ("blocks", "shape", "alone"),
    [
        ([Mlp(32), LoudNorm(32), Mlp(32)], (1, 8, 32), False),
        ([Mlp(32), Scores(), Mask(), nn.Softmax(-1)], (1, 16, 32), False),
        ([Conv(), PaddedPool(), Conv()], (1, 4, 12, 12), True),
        ([Mlp(32), Phase()], (1, 8, 32), None),
    ],
    ids=["block", "op", "fusion", "lost digits"],
)
def test_a_split_graph_proves_what_the_switches_prove(
    blocks: list[nn.Module], shape: tuple[int, ...], alone: bool | None
) -> None:
    """`alone`: whether the split by itself cures the fault; None where nothing comes right."""
    (one,), (other,) = (run(blocks, *shape, switches=heeded).culprits for heeded in (True, False))
    assert (other.block, other.cause, other.op, other.confidence) == (one.block, one.cause, one.op, one.confidence)
    assert len(one.proof) == 1
    assert f"{words(one.proof[0])} The graph was split there." == words(other.proof[0])
    assert "split" not in one.proof[0]
    if alone is None:
        assert len(other.proof) == 1
    else:
        assert other.proof[1].startswith("Split alike, and all of it on the GPU, ")
        assert ("comes right too" in other.proof[1]) is alone


class SumAndMean(nn.Module):
    """Returns a sum together with its own mean: the sum's buffer comes back with an operand's values."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Pair()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.block(x, y)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + y
        return total.mean(1), total


def test_what_copies_cure_is_found_through_raw_taps() -> None:
    torch.manual_seed(0)
    record = bisect(SumAndMean().eval(), (torch.randn(1, 10, 32), torch.randn(1, 10, 32)))
    if record.target != "gpu":
        pytest.skip("no GPU that LiteRT accepts")
    only(record, Cause.ALIASED_OUTPUT, "block")
    assert any("Copying the tapped tensors" in note for note in record.verdict.notes)


def test_the_split_of_the_taps_does_not_show() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Mlp(32), LoudNorm(32), Mlp(32)).eval(), torch.randn(1, 8, 32)
    whole, split = bisect(model, x, no_gpu=True), bisect(model, x, no_gpu=True, tap_memory=1)
    assert [b.errors for b in whole.blocks if "1" not in b.name] == [
        b.errors for b in split.blocks if "1" not in b.name
    ]
    assert [repr(b.errors) for b in whole.blocks] == [repr(b.errors) for b in split.blocks]
    assert [(c.block, c.op) for c in whole.culprits] == [(c.block, c.op) for c in split.culprits]


class Rms(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Normed(nn.Module):
    """Norms of one kind all over; the converter names what they share after several of them."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.n1, self.fc, self.gain = Rms(), nn.Linear(width, width), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.n1(x)) * self.gain


class LoudAtTheEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Normed(16, gain) for gain in (1.0, 3000.0))
        self.norm = Rms()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def test_an_op_behind_all_blocks_is_not_moved_into_a_namesake_before_it() -> None:
    torch.manual_seed(0)
    record = bisect(LoudAtTheEnd(), (torch.randn(1, 8, 16),), blocks="layers.*", no_gpu=True)
    (culprit,) = record.culprits
    assert (culprit.block, culprit.cause, culprit.module) == ("(output)", Cause.OVERFLOW, "norm")
