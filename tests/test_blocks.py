from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from bisect_litert.errors import BlockSelectionError, ExitCode, InputsError
from bisect_litert.models.blocks import ROOT, Block, list_blocks, select
from bisect_litert.models.preparation import prepare


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.encoder = Encoder()
        self.pool = Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.encoder(self.embed(x)))


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = Bert()
        self.head = nn.Linear(4, 2)
        self.unused = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.head(self.bert(x))
        return y, y.argmax(-1)


class Lists(nn.Module):
    """Containers only, nested, and one module in two places."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.stages = nn.ModuleList([nn.ModuleList([shared, Layer()]), nn.ModuleList([shared])])
        self.by_name = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.ReLU())})
        self.empty = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            for part in stage:
                x = part(x)
        return self.by_name["a"](x)


class Weighted(nn.Module):
    """A convolution whose weight is made of parameters, as weight and spectral norms do it, and dropout behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.position = Position()
        self.dropout = nn.Dropout(0.1)
        self.skip = nn.Identity()
        self.layers = nn.ModuleList([Layer(), nn.Dropout2d(0.1), Layer()])


class Position(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3))
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.conv(x))


def names(module: nn.Module, *patterns: str) -> list[str]:
    return [block.name for block in select(module, patterns)]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Bert(), ["embed", "encoder.layer.0", "encoder.layer.1", "pool"]),
        (Task(), ["bert.embed", "bert.encoder.layer.0", "bert.encoder.layer.1", "bert.pool", "head", "unused"]),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())), ["0", "1"]),
        (Lists(), ["stages.0.0", "stages.0.1", "by_name.a"]),
        (Layer(), ["norm", "fc"]),
        (nn.Linear(4, 4), [ROOT]),
        (nn.Sequential(), [ROOT]),
        (Weighted().eval(), ["position", "layers.0", "layers.2"]),
        (Weighted(), ["position", "dropout", "skip", "layers.0", "layers.1", "layers.2"]),
    ],
)
def test_default(module: nn.Module, expected: list[str]) -> None:
    assert names(module) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("encoder.layer.*", ["encoder.layer.0", "encoder.layer.1"]),
        ("encoder.*.1", ["encoder.layer.1"]),
        ("*", ["embed", "encoder", "pool"]),
        (
            "encoder.**",
            [
                "encoder.layer.0",
                "encoder.layer.0.norm",
                "encoder.layer.0.fc",
                "encoder.layer.1",
                "encoder.layer.1.norm",
                "encoder.layer.1.fc",
            ],
        ),
        ("**.norm", ["encoder.layer.0.norm", "encoder.layer.1.norm", "pool.norm"]),
        ("**.embed", ["embed"]),
        ("encoder.**.fc", ["encoder.layer.0.fc", "encoder.layer.1.fc"]),
        ("encoder.layer.?", ["encoder.layer.0", "encoder.layer.1"]),
        ("encoder.layer.[1-9]", ["encoder.layer.1"]),
        ("encoder.layer.[!1]", ["encoder.layer.0"]),
        ("{embed,pool}", ["embed", "pool"]),
        ("{pool,encoder.layer.{0,1}}.f?", ["encoder.layer.0.fc", "encoder.layer.1.fc", "pool.fc"]),
        ("{**.norm,embed}", ["embed", "encoder.layer.0.norm", "encoder.layer.1.norm", "pool.norm"]),
        ("(model)", [ROOT]),
        ("embed", ["embed"]),
    ],
)
def test_globs(pattern: str, expected: list[str]) -> None:
    assert names(Bert(), pattern) == expected


def test_patterns_add_up_in_module_order() -> None:
    assert names(Bert(), "pool", "embed", "p*") == ["embed", "pool"]


def test_class_names() -> None:
    assert select(Bert(), ["pool"]) == (Block("pool", "Layer"),)


def test_a_shared_module_is_listed_once_under_its_first_path() -> None:
    assert names(Lists(), "stages.**") == ["stages.0.0", "stages.0.1", "stages.0.1.norm", "stages.0.1.fc"]
    assert names(Lists(), "stages.1.0") == ["stages.0.0"]


@pytest.mark.parametrize("pattern", ["encodr.layer.*", "layr", "encoder.layer.7", "[", "{embed", "zzz", "Norm"])
def test_no_match(pattern: str) -> None:
    with pytest.raises(BlockSelectionError) as caught:
        select(Bert(), [pattern])
    assert repr(pattern) in caught.value.message
    assert caught.value.hint.endswith("bisect-litert blocks MODEL")
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("pattern", "near"), [("encodr", "encoder"), ("encoder.layers.1", "encoder.layer.1"), ("norm", "pool.norm")]
)
def test_nearest_names(pattern: str, near: str) -> None:
    with pytest.raises(BlockSelectionError) as caught:
        select(Bert(), [pattern])
    assert near in caught.value.hint


def test_one_pattern_of_several_without_a_match_is_an_error() -> None:
    with pytest.raises(BlockSelectionError, match="nothing_here"):
        select(Bert(), ["embed", "nothing_here"])


def test_a_container_is_no_block() -> None:
    with pytest.raises(BlockSelectionError, match="ModuleList") as caught:
        select(Bert(), ["encoder.layer"])
    assert "encoder.layer.*" in caught.value.hint
    assert names(Bert(), "encoder*") == ["encoder"]


def test_a_list_with_a_forward_of_its_own_is_one() -> None:
    class Stack(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[0](x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = Stack([nn.ReLU()])

    assert names(Net(), "stack") == ["stack"]


def rows(module: nn.Module, patterns: Sequence[str] = ()) -> dict[str, tuple[str, int, tuple[str, ...], bool]]:
    found = list_blocks(prepare(module, torch.ones(1, 4)), patterns)
    return {row.name: (row.class_name, row.calls, row.shapes, row.selected) for row in found}


def test_rows_of_every_called_module_in_execution_order() -> None:
    found = rows(Task())
    assert list(found) == [
        ROOT, "bert", "bert.embed", "bert.encoder", "bert.encoder.layer.0", "bert.encoder.layer.0.norm",
        "bert.encoder.layer.0.fc", "bert.encoder.layer.1", "bert.encoder.layer.1.norm", "bert.encoder.layer.1.fc",
        "bert.pool", "bert.pool.norm", "bert.pool.fc", "head",
    ]  # fmt: skip
    assert found[ROOT] == ("Task", 1, ("[0] 1x2", "[1] 1 int64"), False)
    assert found["head"] == ("Linear", 1, ("1x2",), True)
    assert found["bert"][3] is False


def test_rows_count_calls_and_follow_the_patterns() -> None:
    found = rows(Lists(), ["stages.0.0"])
    assert found["stages.0.0"] == ("Linear", 2, ("1x4",), True)
    assert [name for name, row in found.items() if row[3]] == ["stages.0.0"]
    assert "stages.1.0" not in found


def test_listing_leaves_the_model_as_it_was() -> None:
    module = Bert()
    list_blocks(prepare(module, torch.ones(1, 4)))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_forward_that_fails() -> None:
    with pytest.raises(InputsError, match="shapes cannot be multiplied") as caught:
        list_blocks(prepare(Bert(), torch.ones(1, 3)))
    assert "test_blocks.py" in caught.value.detail
