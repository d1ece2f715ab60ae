from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bisect_litert.errors import BisectError, ExportError
from bisect_litert.graphs.emulation import Rounding, round_array
from bisect_litert.models import eager, structure
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.nodes import Node


def line_of(text: str) -> int:
    """The line of this file that holds `text` first."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x)
        x *= 3.7  # in place
        return self.norm(x)


class Everything(nn.Module):
    """A repeated call, a list, an alias, keyword inputs, a nested result, buffers of both kinds and in-place ops."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = Inner()
        self.items = nn.ModuleList([Inner(), Inner()])
        self.alias = self.twice
        self.register_buffer("factor", torch.full((8,), 1.3), persistent=False)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, extra: dict[str, torch.Tensor]) -> Any:
        self.count += 1
        x = self.twice(self.twice(x))
        for item in self.items:
            x = item(x)
        x = self.alias(x) + extra["bias"] * self.factor
        scores = (x @ x.transpose(1, 2)).masked_fill(torch.ones(4, 4).triu(1).bool(), -1e9)
        return {"scores": torch.softmax(scores, -1), "more": (x, torch.logsumexp(x, -1))}, x.argmax(-1)


@pytest.fixture(scope="module")
def everything() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], ExportedModel]:
    torch.manual_seed(0)
    module = Everything().eval()
    args, kwargs = (torch.randn(2, 4, 8),), {"extra": {"bias": torch.randn(2, 4, 8)}}
    return module, args, kwargs, ExportedModel(module, args, kwargs)


Given = tuple[nn.Module, tuple[Any, ...], dict[str, Any], ExportedModel]


def test_values_are_those_of_the_module_and_leave_it_alone(everything: Given) -> None:
    module, args, kwargs, exported = everything
    assert float(module.count) == 0
    expected = [value.numpy() for _, value in structure.leaves(eager.call(module, args, kwargs))]
    values = exported.values()
    assert len(exported.outputs) == len(expected) == 4
    for name, value in zip(exported.outputs[:3], expected[:3], strict=True):
        assert values[name].dtype == np.float32
        np.testing.assert_allclose(values[name], value, atol=2e-6)
    assert exported.outputs[3] not in values  # integers are not float results
    assert all(np.array_equal(value, exported.values()[name]) for name, value in values.items())


def test_operators_know_their_module_call_and_line(everything: Given) -> None:
    nodes = everything[3].nodes()
    linear = [node for node in nodes if node.target == "aten.addmm.default"]
    assert [node.module for node in linear] == ["twice.fc", "twice.fc", "items.0.fc", "items.1.fc", "twice.fc"]
    assert [node.within[0] for node in linear] == ["twice", "twice@2", "items.0", "items.1", "twice@3"]
    assert linear[1].within == ("twice@2", "twice.fc@2")
    assert {node.module_class for node in linear} == {"Linear"}
    assert {node.source for node in linear} == {f"test_exported.py:{line_of('x = self.fc(x)')}"}
    assert {node.code for node in linear} == {"x = self.fc(x)"}
    assert {Path(node.path) for node in linear} == {Path(__file__)}
    product = next(node for node in nodes if node.target.startswith("aten.mul.") and node.module == "items.0")
    assert product.code == "x *= 3.7  # in place"
    assert product.numbers == (3.7,)
    softmax = next(node for node in nodes if "softmax" in node.target)
    assert (softmax.module, softmax.module_class, softmax.within) == ("", "", ())
    assert softmax.shape == (2, 4, 4)


def test_norms_come_apart_into_squares_and_sums(everything: Given) -> None:
    nodes = [node for node in everything[3].nodes() if node.module == "items.0.norm"]
    kinds = [node.target.split(".")[1] for node in nodes]
    assert kinds == ["mean", "sub", "mul", "mean", "add", "rsqrt", "mul", "mul", "add"]
    by_name = {node.name: node for node in nodes}
    assert nodes[2].inputs == (nodes[1].name,)
    assert set(nodes[6].inputs) == {nodes[1].name, nodes[5].name}
    assert all(name in by_name or name not in {n.name for n in nodes} for node in nodes for name in node.inputs)


def test_an_excerpt_marks_the_line(everything: Given) -> None:
    exported = everything[3]
    node = next(node for node in exported.nodes() if node.code == "x = self.fc(x)")
    number = line_of("x = self.fc(x)")
    assert node.excerpt(lines=1).splitlines() == [
        f"  {number - 1}     def forward(self, x: torch.Tensor) -> torch.Tensor:",
        f"> {number}         x = self.fc(x)",
        f"  {number + 1}         x *= 3.7  # in place",
    ]


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)  # in a helper


def test_a_function_that_forward_calls_keeps_its_line() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return helper(x) + 1  # in forward

    sine, plus = ExportedModel(Plain(), (torch.ones(2),), {}).nodes()
    assert sine.source == f"test_exported.py:{line_of('# in a helper')}"
    assert plus.source == f"test_exported.py:{line_of('# in forward')}"


def test_torch_itself_is_never_the_line() -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(x) + 1

    node = ExportedModel(Plain(), (torch.ones(2),), {}).nodes()[0]
    assert node.source == f"test_exported.py:{line_of('return nn.functional.gelu')}"


@pytest.mark.parametrize("rounding", list(Rounding))
def test_every_result_is_rounded(everything: Given, rounding: Rounding) -> None:
    exported = everything[3]
    values = exported.values(rounding)
    runtime = {node.name for node in exported.nodes() if not node.constant}
    assert len(values) > 40
    for name in runtime & values.keys():
        np.testing.assert_array_equal(round_array(values[name], rounding), values[name])


def test_inputs_parameters_and_numbers_are_rounded() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0001]))

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, x * 1e5, x / 1e5, x + 1.0

    exported = ExportedModel(Scale(), (torch.tensor([1.0004]),), {})
    one = np.float32(np.float16(1.0004))
    half = [exported.values(Rounding.HALF)[name] for name in exported.outputs]
    assert half[0] == one  # 1.0001 is 1 in fp16, and so is its product
    assert np.isinf(half[1])  # 1e5 itself is beyond fp16
    assert 0 < half[2] < 2e-5  # while a division is a multiplication by 1e-5
    significand = [exported.values(Rounding.SIGNIFICAND)[name] for name in exported.outputs]
    np.testing.assert_allclose(significand[1], 1e5, rtol=2e-3)


def test_what_depends_on_no_input_is_folded_in_fp32() -> None:
    class Folded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.full((3,), 1e8) * 1e-8)

    exported = ExportedModel(Folded(), (torch.ones(3),), {})
    assert [node.constant for node in exported.nodes()][-1] is False
    assert [node.constant for node in exported.nodes()].count(True) >= 2
    np.testing.assert_array_equal(exported.values(Rounding.HALF)[exported.outputs[0]], np.ones(3, np.float32))


def test_only_what_is_kept_comes_back(everything: Given) -> None:
    values = everything[3].values(keep=lambda node: node.module == "items.1.fc")
    assert set(values) == {node.name for node in everything[3].nodes() if node.module == "items.1.fc"}


def test_a_result_can_be_replaced_and_a_part_run_alone() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(torch.relu(x) + 1)

    exported = ExportedModel(Chain(), (torch.tensor([2.0]),), {})
    relu, add, exp = exported.nodes()
    seen: dict[str, float] = {}

    def see(node: Node, result: Any, args: Any, kwargs: Any) -> None:
        seen[node.name] = float(result)

    exported.walk(see, force={add.name: np.array([0.0], np.float32)}, only={exp.name})
    assert seen == {exp.name: 1.0}
    seen.clear()
    exported.walk(see, force={relu.name: np.array([-1.0], np.float32)})
    assert seen == {relu.name: 2.0, add.name: 0.0, exp.name: 1.0}


def _layer_norm(x: torch.Tensor) -> Any:
    return F.layer_norm(x, (4, 6), torch.arange(24.0).reshape(4, 6), torch.ones(4, 6))


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "layer_norm": _layer_norm,
    "rms_norm": lambda x: F.rms_norm(x, (6,), torch.arange(6.0)),
    "rms_norm_plain": lambda x: F.rms_norm(x, (4, 6)),
    "group_norm": lambda x: F.group_norm(x, 2, torch.arange(4.0), torch.ones(4)),
    "group_norm_plain": lambda x: F.group_norm(x, 4),
    "batch_norm": lambda x: F.batch_norm(x, torch.ones(4), torch.arange(4.0) + 1, torch.arange(4.0), torch.ones(4)),
    "batch_norm_plain": lambda x: F.batch_norm(x, torch.ones(4), torch.arange(4.0) + 1),
    "instance_norm": lambda x: F.instance_norm(x),
    "instance_norm_affine": lambda x: F.instance_norm(x, weight=torch.arange(4.0), bias=torch.ones(4)),
    "var": lambda x: x.var(),
    "var_of_axes": lambda x: x.var((0, 2), correction=0, keepdim=True),
    "std": lambda x: x.std(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "var_mean_kept": lambda x: torch.var_mean(x, (1, 2), keepdim=True),
    "norm": lambda x: x.norm(),
    "norm_of_axis": lambda x: x.norm(dim=1, keepdim=True),
    "norm_1": lambda x: x.norm(p=1, dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "cross_entropy": lambda x: F.cross_entropy(x[:, :, 0], torch.tensor([0, 2, 1])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_decompositions_keep_the_value(name: str) -> None:
    class Call(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return FUNCTIONS[name](x)

    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1)) * 3
    exported = ExportedModel(Call(), (x,), {})
    expected = [value.numpy() for _, value in structure.leaves(FUNCTIONS[name](x))]
    values = exported.values()
    for output, value in zip(exported.outputs, expected, strict=True):
        assert values[output].shape == value.shape
        np.testing.assert_allclose(values[output], value, rtol=2e-5, atol=2e-5)
    whole = ("layer_norm", "group_norm", "batch_norm", "rms_norm", "var.", "var_mean", "log_softmax")
    assert not [node.target for node in exported.nodes() if any(word in node.target for word in whole)]


def test_without_decomposition_in_place_operators_leave_the_parameters_alone() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(1)
            return F.softmax(x + self.state, -1)

    module = InPlace()
    exported = ExportedModel(module, (torch.ones(2),), {}, decompose=False)
    assert any("softmax.int" in node.target for node in exported.nodes())
    first, second = exported.values(), exported.values()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert module.state.tolist() == [0, 0]


def test_a_model_that_cannot_be_exported_is_one_sentence() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ExportError) as caught:
        ExportedModel(Branching(), (torch.ones(2),), {})
    assert isinstance(caught.value, BisectError)
    assert caught.value.message.startswith("torch.export cannot trace the model: ")
    assert len(caught.value.message) < 220
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_taking_apart_prints_nothing_of_torchs_own_deprecations(recwarn: pytest.WarningsRecorder) -> None:
    model = ExportedModel(Inner().eval(), (torch.randn(2, 4, 8),), {}, decompose=False)
    model.decompose({})  # copies torch's own records of the modules
    assert [str(w.message) for w in recwarn if "LeafSpec" in str(w.message)] == []
    assert not any("_" in node.target.split(".")[1][-1:] for node in model.nodes())  # nor is anything in place
