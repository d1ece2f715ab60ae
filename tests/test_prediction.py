from __future__ import annotations

import json
from collections.abc import Callable
from math import isinf, isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bisect_litert.cli import main
from bisect_litert.models import blocks
from bisect_litert.programs import predicting
from bisect_litert.programs.prediction import BlockPrediction, Prediction, is_off, predict
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> str:
    return f"test_prediction.py:{next(i for i, line in enumerate(LINES, 1) if text in line)}"


class Healthy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.fc(x))


class Does(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Chain(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Scaled(nn.Module):
    """A layer norm behind a large factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.norm = factor, nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.factor
        return self.norm(x)  # the norm squares


def root_mean_square(x: torch.Tensor) -> torch.Tensor:
    x = x * 1000
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)  # the squares of rms


def masked(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def attend(x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.transpose(1, 2)) / 32
        hidden = torch.ones(scores.shape[-2:]).triu(1).bool()
        return torch.softmax(scores.masked_fill(hidden, value), -1) @ x

    return attend


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def foretell(module: nn.Module, *args: torch.Tensor, patterns: tuple[str, ...] = ()) -> Prediction:
    module = module.eval()
    return predict(module, args, {}, blocks.select(module, patterns))


def around(function: Callable[[torch.Tensor], Any]) -> Prediction:
    """The function as block parts.1 of three."""
    torch.manual_seed(0)
    return foretell(Chain(Healthy(), Does(function), Healthy()), numbers(1, 8, 32))


def named(predicted: Prediction) -> list[tuple[str, str]]:
    return [(block.name, block.kind) for block in predicted.leaving]


def block(predicted: Prediction, name: str) -> BlockPrediction:
    return next(found for found in predicted.blocks if found.name == name)


def test_an_overflowing_norm_is_named_with_op_module_and_line() -> None:
    torch.manual_seed(0)
    predicted = foretell(Chain(Healthy(), Scaled(1000.0), Healthy()), numbers(1, 8, 32))
    assert named(predicted) == [("parts.1", "overflow")]
    (found,) = predicted.leaving
    assert found.origin is not None
    assert (found.origin.target, found.origin.module) == ("aten.mul.Tensor", "parts.1.norm")
    assert found.origin.source == line_of("# the norm squares")
    assert found.origin_peak > 1e6
    assert found.headroom < 1
    assert found.significand < 2e-3 < 0.1 < found.half
    assert [b.name for b in predicted.blocks] == ["parts.0", "parts.1", "parts.2"]


def test_what_is_large_but_fits_is_in_line() -> None:
    torch.manual_seed(0)
    predicted = foretell(Chain(Healthy(), Scaled(10.0)), numbers(1, 8, 32))
    assert named(predicted) == []
    assert all(b.half < 5e-3 and b.origin is None for b in predicted.blocks)
    assert block(predicted, "parts.1").headroom > 1


def test_several_faults_are_named_each_at_its_own_inputs() -> None:
    torch.manual_seed(0)
    module = Chain(Scaled(1000.0), Healthy(), Does(root_mean_square), Healthy())
    predicted = foretell(module, numbers(1, 8, 32))
    assert named(predicted) == [("parts.0", "overflow"), ("parts.2", "overflow")]
    second = predicted.leaving[1].origin
    assert second is not None
    assert second.source == line_of("# the squares of rms")
    assert second.target.startswith("aten.pow")


@pytest.mark.parametrize("value", [-1e9, torch.finfo(torch.float32).min, float("-inf"), -1e4])
def test_masks_in_front_of_a_softmax_are_benign(value: float) -> None:
    predicted = around(masked(value))
    assert named(predicted) == []
    if value == -1e9:
        assert block(predicted, "parts.1").headroom < 1e-4  # the size is reported all the same


def test_an_origin_behind_a_benign_mask_is_not_the_mask() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        x = masked(-1e9)(x)
        return torch.sqrt(torch.square(x * 3000)) / 3000  # far too large

    (found,) = around(both).leaving
    assert found.origin is not None
    assert found.origin.source == line_of("# far too large")
    assert found.kind == "overflow"


UNDERFLOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "epsilon in a quotient": lambda x: torch.relu(x) / (torch.relu(x) + 1e-9),
    "epsilon in a logarithm": lambda x: torch.log(torch.relu(x) + 1e-9),
    "normalised zeros": lambda x: F.normalize(torch.relu(x - 100), dim=-1) + x,
    "a chain": lambda x: (x * 1e-5) * 1e-5 * 1e10,
}


@pytest.mark.parametrize("name", UNDERFLOWS)
def test_underflow_is_told_from_overflow(name: str) -> None:
    assert named(around(UNDERFLOWS[name])) == [("parts.1", "underflow")]


def test_lost_digits_are_no_business_of_a_prediction() -> None:
    predicted = around(lambda x: (x + 1000.0) - 1000.0)
    assert named(predicted) == []
    found = block(predicted, "parts.1")
    assert found.half > 0.05
    assert found.significand > 0.05


def test_a_constant_beyond_the_range_is_an_overflow() -> None:
    assert named(around(lambda x: (x * 1e5) * 1e-5)) == [("parts.1", "overflow")]


def test_an_input_beyond_the_range() -> None:
    predicted = foretell(Chain(Does(lambda x: x * 1e-5), Healthy()), numbers(1, 8, 32) * 1e5)
    assert named(predicted) == [("parts.0", "overflow")]
    assert block(predicted, "parts.0").peak.node is None  # the largest value is the input's


def test_what_reads_values_beyond_the_range_comes_after() -> None:
    predicted = foretell(Chain(Healthy(), Does(lambda x: x * 1e6), Does(lambda x: x * 2 + 1)), numbers(1, 8, 32))
    assert named(predicted) == [("parts.1", "overflow")]
    last = block(predicted, "parts.2")
    assert (last.leaves_range, last.after) == (False, "parts.1")


def test_a_fault_outside_every_block_is_the_outputs() -> None:
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.ModuleList([Healthy()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(torch.square(self.only[0](x) * 3000))

    assert named(foretell(Tail(), numbers(1, 8, 32))) == [("(output)", "overflow")]


def test_a_second_call_and_an_inner_block_are_judged_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.outer = nn.LayerNorm(32), Chain(Scaled(1000.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.norm(self.norm(x) * 1000))

    predicted = foretell(Twice(), numbers(1, 8, 32), patterns=("norm", "outer", "outer.parts.0"))
    assert named(predicted) == [("norm@2", "overflow"), ("outer.parts.0", "overflow")]
    assert {b.name for b in predicted.blocks} == {"norm", "norm@2", "outer", "outer.parts.0"}


FUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a mean": lambda x: ((x.abs() * 1e4).sum((1, 2), keepdim=True) / 256.0) + x,
    "a mean by its reciprocal": lambda x: ((x.abs() * 1e4).sum((1, 2), keepdim=True) * (1 / 256)) + x,
    "a softmax": lambda x: torch.exp(x * 9) / torch.exp(x * 9).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_the_converter_fuses_has_no_range_of_its_own(name: str) -> None:
    assert named(around(FUSED[name])) == []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.abs() * 1e4).sum((1, 2), keepdim=True) / 255.0 + x,  # not the length
        lambda x: torch.exp(x * 9) / torch.exp(x * 9.1).sum(-1, keepdim=True),  # not the same exponential
    ],
)
def test_what_only_looks_fused_is_judged(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert named(around(function)) == [("parts.1", "overflow")]


def test_a_factor_behind_a_linear_layer_goes_into_its_weights() -> None:
    class Balanced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(32, 32)
            self.fc.weight.data *= 1e6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) / 1e6

    assert named(foretell(Chain(Balanced(), Healthy()), numbers(1, 8, 32))) == []


def test_sums_are_added_up_by_magnitude() -> None:
    x = torch.tensor([[[3.0, -4.0], [1.0, 2.0]]])
    weight = torch.tensor([[1.0, -2.0], [0.5, 0.0]])

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = Does(lambda x: x.sum(-1))
            self.mean = Does(lambda x: x.mean((1, 2)))
            self.squares = Does(lambda x: (x * x).mean(-1))
            self.product = Does(lambda x: x @ weight)
            self.running = Does(lambda x: x.cumsum(1))
            self.nothing = Does(lambda x: x * 2)

        def forward(self, x: torch.Tensor) -> Any:
            return [part(x) for part in self.children()]

    predicted = foretell(Sums(), x, patterns=("*",))
    sums = {b.name: (b.largest_sum.value, b.largest_squares.value) for b in predicted.blocks}
    assert sums["plain"] == (7, 0)
    assert sums["mean"] == (10, 0)
    assert sums["squares"] == (25, 25)
    assert sums["product"] == (6, 0)  # 3 * 1 + 4 * 0.5 = 5 and 3 * |-2| = 6
    assert sums["running"] == (6, 0)
    assert sums["nothing"] == (0, 0)
    assert block(predicted, "nothing").peak.value == 8


def test_the_smallest_value_fp16_loses() -> None:
    predicted = foretell(Chain(Does(lambda x: x * 1e-9 + 0), Does(lambda x: x + 1)), torch.ones(1, 4))
    assert block(predicted, "parts.0").smallest.value == pytest.approx(1e-9)
    assert isnan(block(predicted, "parts.1").smallest.value)


@pytest.mark.parametrize(
    ("half", "significand", "off"),
    [
        (4e-3, 1e-5, False),
        (6e-3, 5e-4, True),
        (6e-3, 7e-4, False),
        (float("inf"), 1.0, True),
        (1.0, float("inf"), False),
    ],
)
def test_the_rule(half: float, significand: float, off: bool) -> None:
    assert is_off(half, significand) is off


# -- the command line -------------------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.norm = factor, nn.LayerNorm(16)
    def forward(self, x):
        return self.norm(x * self.factor)
model = nn.Sequential(Block(1.0), Block({factor})).eval()
inputs = (torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0)),)
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], str]:
    monkeypatch.chdir(tmp_path)

    def write(factor: float) -> str:
        path = tmp_path / f"model_{factor:.0f}.py"
        path.write_text(MODEL.format(factor=factor), encoding="utf-8")
        return path.name

    return write


def test_predict_says_which_block_and_writes_nothing(
    model_file: Callable[[float], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = model_file(1000.0)
    assert main([name, "--predict"]) == 1
    out = capsys.readouterr().out
    assert "predicted from torch, no GPU" in out
    assert "Predicted: overflow in 1" in out
    assert f"aten.mul.Tensor, in 1.norm  {name}:9" in out
    assert ">  9         return self.norm(x * self.factor)" in out
    assert "leaves the range" in out
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name != "__pycache__"] == []


def test_predict_exits_0_when_nothing_leaves(
    model_file: Callable[[float], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([model_file(1.0), "--predict"]) == 0
    out = capsys.readouterr().out
    assert "Predicted: no overflow" in out
    assert "No block is predicted to leave fp16" in out


def test_predict_makes_a_record_that_report_reads(
    model_file: Callable[[float], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([model_file(1000.0), "--predict", "--json", "--out", "run"]) == 1
    printed = json.loads(capsys.readouterr().out)
    record = RunRecord.load(tmp_path / "run")
    assert json.loads(record.to_json()) == printed
    assert str(tmp_path) not in record.to_json()
    assert record.target == "predicted from torch, no GPU"
    assert (record.verdict.cause, record.verdict.diverged) == (Cause.OVERFLOW, True)
    assert [b.mark for b in record.blocks] == [Mark.OK, Mark.CULPRIT]
    ranges = record.blocks[1].ranges
    assert ranges is not None
    assert ranges.leaves_range
    assert ranges.headroom == pytest.approx(65504 / ranges.peak)
    assert ranges.largest_squares > 65504
    assert ranges.squares_at.startswith("aten.mean.dim, model_1000.py:9")
    assert record.culprits[0].advice
    assert main(["report", "run"]) == 0
    assert "Predicted: overflow in 1" in capsys.readouterr().out
    assert main(["report", "run", "--format", "md"]) == 0
    assert "| `1` | " in capsys.readouterr().out


def test_predict_keeps_the_exit_codes(
    model_file: Callable[[float], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["missing.py", "--predict"]) == 2
    assert main([model_file(1.0), "--predict", "--blocks", "nowhere"]) == 2
    assert main([model_file(1.0), "--predict", "--view"]) == 2
    (tmp_path / "branching.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x if float(x.sum()) > 0 else -x\nmodel = M()\ninputs = (torch.ones(2),)\n",
        encoding="utf-8",
    )
    assert main(["branching.py", "--predict"]) == 125
    assert "torch.export cannot trace the model" in capsys.readouterr().err
    (tmp_path / "broken.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x / 0 * 0\n"
        "model = M()\ninputs = (torch.ones(2),)\n",
        encoding="utf-8",
    )
    assert main(["broken.py", "--predict"]) == 125
    assert "NaN" in capsys.readouterr().err


def test_a_place_reads_as_operator_and_line() -> None:
    (found,) = around(lambda x: (x * 1e5) * 1e-5).leaving
    assert found.origin is not None
    assert predicting.place(found.origin).startswith("aten.mul.Tensor, test_prediction.py:")
    assert predicting.place(None) == ""
    assert isinf(found.half) or found.half > 0.1
