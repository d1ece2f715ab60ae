from __future__ import annotations

import contextlib
import inspect
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert.errors import InputsError, UnfitReferenceError
from bisect_litert.models.blocks import Block, select
from bisect_litert.models.reference import Forward, TorchReference, tapped_module

Pair = namedtuple("Pair", "left right")


class Do(nn.Module):
    """A block that does what it is given."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Net(nn.Module):
    """A model that does what it is given with its blocks."""

    def __init__(self, function: Any, **blocks: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, block in blocks.items():
            self.add_module(name, block)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


X = torch.arange(1.0, 5.0)


def reference(net: nn.Module, *args: Any, blocks: Any = ("*",), **kwargs: Any) -> TorchReference:
    return TorchReference(net.eval(), args, kwargs, select(net, blocks))


def filled(forward: Forward, value: float) -> dict[str, np.ndarray]:
    return {key: np.full_like(array, value) for key, array in forward.taps.items()}


def equal(array: np.ndarray, expected: Any) -> None:
    np.testing.assert_array_equal(array, np.asarray(expected))


def chain(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.c(self.b(self.a(x)))


def test_taps_points_and_outputs() -> None:
    forward = reference(Net(chain, a=nn.ReLU(), b=Do(lambda x: x * 2), c=Do(lambda x: x.reshape(2, 2))), X).run()
    assert [(p.key, p.block, p.class_name, p.call, p.label, p.order) for p in forward.points] == [
        ("a", "a", "ReLU", 1, "", 0),
        ("b", "b", "Do", 1, "", 1),
        ("c", "c", "Do", 1, "", 2),
    ]
    assert forward.points[2].shape == (2, 2)
    assert forward.points[2].dtype == "float32"
    assert list(forward.outputs) == ["output"]
    equal(forward.outputs["output"], [[2, 4], [6, 8]])


def test_forcing_records_first_and_replaces_then() -> None:
    truth = reference(Net(chain, a=Do(lambda x: x + 1), b=Do(lambda x: x * 2), c=Do(lambda x: x - 1)), X)
    values = {"a": np.full(4, 10.0), "b": np.full(4, 100.0), "c": np.full(4, 7.0)}
    forced = truth.force(values)
    equal(forced.taps["a"], X + 1)  # what torch computes, not what it was given
    equal(forced.taps["b"], [20.0] * 4)  # from the forced a
    equal(forced.taps["c"], [99.0] * 4)
    equal(forced.outputs["output"], [7.0] * 4)
    assert forced.unforced == ()
    assert forced.problem == ""
    equal(values["a"], [10.0] * 4)
    equal(truth.run().taps["b"], (X + 1) * 2)


def test_forcing_only_some_and_converting() -> None:
    truth = reference(Net(chain, a=Do(lambda x: x.reshape(2, 2)), b=Do(lambda x: x > 2), c=Do(lambda x: x.int())), X)
    forced = truth.force({"a": np.arange(4, dtype=np.float64), "c": np.array([[1.0, 2.0], [3.0, 4.0]])})
    equal(forced.taps["b"], [[False, False], [False, True]])
    assert forced.outputs["output"].dtype == np.int32
    equal(forced.outputs["output"], [[1, 2], [3, 4]])
    equal(truth.force({"b": np.array([1.0, 0.0, 0.0, 0.0])}).outputs["output"], [[1, 0], [0, 0]])


def test_nan_and_infinity_pass_through() -> None:
    truth = reference(Net(chain, a=nn.Identity(), b=Do(lambda x: x * 0), c=nn.Identity()), X)
    forced = truth.force({"a": np.array([np.nan, np.inf, 1, 2], np.float32)})
    assert np.isnan(forced.taps["b"][:2]).all()
    assert forced.problem == ""


@dataclass
class Out:
    hidden: torch.Tensor
    more: Any


@pytest.mark.parametrize(
    ("make", "use", "labels"),
    [
        (lambda x: (x, x + 1), lambda v: v[0] + v[1], ["[0]", "[1]"]),
        (lambda x: [x, None, x + 1], lambda v: v[0] + v[2], ["[0]", "[2]"]),
        (lambda x: {"k": x, "l": x + 1}, lambda v: v["k"] + v["l"], ["['k']", "['l']"]),
        (lambda x: Pair(x, x + 1), lambda v: v.left + v.right, [".left", ".right"]),
        (lambda x: Out(x, {"n": (x + 1, 3)}), lambda v: v.hidden + v.more["n"][0], [".hidden", ".more['n'][0]"]),
    ],
)
def test_nested_returns(make: Any, use: Any, labels: list[str]) -> None:
    truth = reference(Net(lambda self, x: use(self.a(x)), a=Do(make)), X)
    first = truth.run()
    assert [p.label for p in first.points] == labels
    assert [p.key for p in first.points] == ["a" + label for label in labels]
    assert {p.order for p in first.points} == {0}
    equal(first.outputs["output"], 2 * X + 1)
    forced = truth.force(filled(first, 4.0))
    equal(forced.taps["a" + labels[1]], X + 1)
    equal(forced.outputs["output"], [8.0] * 4)


def test_called_twice_and_shared() -> None:
    shared = Do(lambda x: x * 3)
    truth = reference(Net(lambda self, x: self.b(self.a(x) + 1), a=shared, b=shared), X)
    first = truth.run()
    assert [(p.key, p.block, p.call, p.block_key, p.order) for p in first.points] == [
        ("a", "a", 1, "a", 0),
        ("a@2", "a", 2, "a@2", 1),
    ]
    forced = truth.force({"a": np.zeros(4, np.float32), "a@2": np.full(4, 9.0)})
    equal(forced.taps["a@2"], [3.0] * 4)
    equal(forced.outputs["output"], [9.0] * 4)


def test_second_call_with_a_label() -> None:
    first = reference(Net(lambda self, x: self.a(self.a(x)[1]), a=Do(lambda x: (x, x + 1))), X).run()
    assert [p.key for p in first.points] == ["a[0]", "a[1]", "a@2[0]", "a@2[1]"]
    assert first.points[3].block_key == "a@2"


def test_recursion() -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            return x if depth == 0 else self(x, depth - 1) + 1

    truth = reference(Net(lambda self, x: self.a(x, 2), a=Recursive()), X)
    first = truth.run()
    assert [p.key for p in first.points] == ["a", "a@2", "a@3"]  # innermost first
    equal(first.taps["a@3"], X + 2)
    forced = truth.force({"a@2": np.zeros(4)})
    equal(forced.taps["a@3"], [1.0] * 4)


def test_nested_blocks() -> None:
    inner = nn.Sequential(Do(lambda x: x + 1), Do(lambda x: x * 2))
    truth = reference(Net(lambda self, x: self.a(x) - 1, a=inner), X, blocks=["a", "a.*"])
    first = truth.run()
    assert [p.key for p in first.points] == ["a.0", "a.1", "a"]
    forced = truth.force({"a.0": np.zeros(4), "a.1": np.full(4, 5.0), "a": np.full(4, 50.0)})
    equal(forced.taps["a.1"], [0.0] * 4)
    equal(forced.taps["a"], [5.0] * 4)  # the children's forced values flow into the parent
    equal(forced.outputs["output"], [49.0] * 4)


def test_the_model_itself_as_a_block() -> None:
    truth = TorchReference(nn.ReLU().eval(), (X - 2,), {}, [Block("(model)", "ReLU")])
    assert truth.run().points[0].key == "(model)"
    equal(truth.force({"(model)": np.ones(4)}).outputs["output"], [1.0] * 4)


def test_taps_are_taken_before_later_in_place_changes() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y += 100
        return self.b(y)

    first = reference(Net(forward, a=Do(lambda x: x * 2), b=nn.Identity()), X).run()
    equal(first.taps["a"], X * 2)
    equal(first.taps["b"], X * 2 + 100)


def test_forcing_an_in_place_block_reaches_everyone_who_holds_the_tensor() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = x * 1
        z = self.a(y)
        return y, z

    values = {"a": np.full(4, 3.0, np.float32)}
    in_place = reference(Net(forward, a=nn.ReLU(inplace=True)), X - 2)
    equal(in_place.run().outputs["[0]"], torch.relu(X - 2))
    forced = in_place.force(values)
    equal(forced.outputs["[0]"], [3.0] * 4)
    equal(forced.outputs["[1]"], [3.0] * 4)
    passing = reference(Net(forward, a=nn.Identity()), X - 2).force(values)
    equal(passing.outputs["[0]"], X - 2)  # a block that only hands its input on does not change it
    equal(passing.outputs["[1]"], [3.0] * 4)


def test_an_in_place_block_on_a_keyword_argument() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        y = x * 1
        self.a(y=y)
        return y

    forced = reference(Net(forward, a=Do(lambda y: y.add_(1))), X).force({"a": np.zeros(4)})
    equal(forced.outputs["output"], [0.0] * 4)


def test_forced_values_survive_in_place_changes_after_them() -> None:
    values = {"a": np.zeros(4, np.float32)}
    forced = reference(Net(lambda self, x: self.a(x).add_(1), a=Do(lambda x: x * 1)), X).force(values)
    equal(forced.outputs["output"], [1.0] * 4)
    equal(values["a"], [0.0] * 4)


def test_memory_layout_is_kept() -> None:
    seen: list[tuple[int, ...]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.stride())
        return x

    net = Net(lambda self, x: self.b(self.a(x)), a=Do(lambda x: x.transpose(1, 3)), b=Do(look))
    truth = reference(net, torch.rand(1, 2, 3, 4))
    truth.force(truth.run().taps)
    assert seen[0] == seen[1]


def test_a_call_skipped_or_resized_in_a_forced_run() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y = self.b(y) if float(y.sum()) > 0 else y
        return self.c(y[y > 0])

    truth = reference(Net(forward, a=nn.Identity(), b=nn.Identity(), c=nn.Identity()), X)
    first = truth.run()
    assert [p.key for p in first.points] == ["a", "b", "c"]
    forced = truth.force({**first.taps, "a": np.array([-9.0, 1, 1, 1])})
    assert [p.key for p in forced.points] == ["a", "c"]
    assert forced.unforced == ("b", "c")
    assert forced.taps["c"].shape == (3,)
    assert forced.problem == ""


def test_values_that_break_the_forward_keep_what_was_recorded() -> None:
    table = torch.arange(3.0)
    truth = reference(
        Net(lambda self, x: table[self.b(self.a(x))], a=nn.Identity(), b=nn.Identity()), torch.tensor([1, 2])
    )
    forced = truth.force({"a": np.array([99, 0])})
    equal(forced.taps["b"], [99, 0])
    assert forced.outputs == {}
    assert "IndexError" in forced.problem


def test_inputs_of_many_kinds() -> None:
    def forward(self: Any, ids: Any, keep: Any, *, scale: float, unused: Any = None, extra: Any) -> Any:
        x = self.pick(ids) * keep[..., None]
        return {"x": self.scale(x, by=scale) + extra[0], "n": keep.sum(), "two": torch.tensor(2.0), "none": None}

    net = Net(forward, pick=nn.Embedding(5, 3), scale=Do(lambda x, by: x * by))
    ids, keep = torch.tensor([[1, 4]]), torch.tensor([[True, False]])
    truth = reference(net, ids, keep, scale=2.0, unused=X, extra=[torch.ones(3)])
    first = truth.run()
    assert list(first.outputs) == ["['x']", "['n']", "['two']"]
    assert first.outputs["['n']"].shape == ()
    assert first.outputs["['n']"].dtype == np.int64
    equal(first.outputs["['x']"][0, 1], [1.0] * 3)
    assert truth.repeatable() == ""
    wide = truth.run64()
    assert wide is not None
    assert wide.outputs["['x']"].dtype == np.float64
    assert wide.outputs["['n']"].dtype == np.int64


def test_int_and_bool_taps() -> None:
    first = reference(Net(chain, a=Do(lambda x: x > 2), b=Do(lambda x: x.long()), c=nn.Identity()), X).run()
    assert [p.dtype for p in first.points] == ["bool", "int64", "int64"]


def test_buffers_state_and_inputs_do_not_leak() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.cache: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.cache.append(x)
            x += self.count * len(self.cache)
            return x

    net, x = Net(chain, a=Counts(), b=nn.Identity(), c=nn.Identity()), X.clone()
    truth = reference(net, x)
    first = truth.run()
    equal(first.taps["a"], X + 1)
    assert truth.repeatable() == ""
    equal(truth.force({}).taps["a"], first.taps["a"])
    equal(x, X)
    assert float(net.a.count) == 0
    assert net.a.cache == []
    assert not net.a._forward_hooks


def test_the_users_own_hooks_run_before_the_tap() -> None:
    net = Net(chain, a=nn.Identity(), b=nn.Identity(), c=nn.Identity())
    net.a.register_forward_hook(lambda module, args, output: output * 10)
    equal(reference(net, X).run().taps["a"], X * 10)


def test_a_block_that_raises_and_is_caught() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            self.a(x, True)
        return self.a(x, False)

    def block(x: torch.Tensor, fail: bool) -> torch.Tensor:
        if fail:
            raise ValueError
        return x + 1

    first = reference(Net(forward, a=Do(block)), X).run()
    assert [p.key for p in first.points] == ["a"]


def test_transformer_layers_call_their_parts() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plain = reference(nn.TransformerEncoder(layer, 2), torch.rand(1, 3, 8), blocks=["layers.*.linear1"]).run()
    assert [p.key for p in plain.points] == ["layers.0.linear1", "layers.1.linear1"]


def test_a_failing_forward() -> None:
    net = Net(chain, a=nn.Linear(3, 3), b=nn.Identity(), c=nn.Identity())
    with pytest.raises(InputsError, match="RuntimeError") as caught:
        reference(net, X).run()
    assert "\n" not in caught.value.message
    assert "float32 4" in caught.value.hint
    assert "test_reference.py" in caught.value.detail
    assert "reference.py" not in caught.value.detail.replace("test_reference.py", "")


def test_random_models_are_not_repeatable() -> None:
    truth = reference(Net(chain, a=nn.Identity(), b=Do(lambda x: x + torch.rand(4)), c=nn.Identity()), X)
    assert "random" in truth.repeatable()
    assert "the output of b" in truth.repeatable()
    equal(truth.run().taps["b"], truth.force({}).taps["b"])


def test_models_with_outside_state_are_not_repeatable() -> None:
    calls: list[int] = []

    def count(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    assert "does not repeat" in reference(Net(chain, a=nn.Identity(), b=nn.Identity(), c=Do(count)), X).repeatable()


def test_nan_repeats() -> None:
    truth = reference(Net(chain, a=Do(torch.log), b=nn.Identity(), c=nn.Identity()), X - 2)
    assert np.isnan(truth.run().taps["a"]).any()
    assert truth.repeatable() == ""


def test_float64() -> None:
    def upcasts(x: torch.Tensor) -> torch.Tensor:
        return x.float() * torch.ones(4, dtype=torch.float32) @ torch.eye(4)

    class Attribute(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = torch.eye(4) / 3  # neither parameter nor buffer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float32) @ self.matrix

    net = Net(chain, a=nn.Linear(4, 4), b=Do(upcasts), c=Attribute())
    truth = reference(net, X)
    first, wide = truth.run(), truth.run64()
    assert wide is not None
    assert [p.key for p in wide.points] == [p.key for p in first.points]
    assert {a.dtype.name for a in wide.taps.values()} == {"float64"}
    weight, bias = net.a.weight.detach().double().numpy(), net.a.bias.detach().double().numpy()
    np.testing.assert_allclose(wide.taps["b"], weight @ X.double().numpy() + bias, rtol=1e-14)
    forced = truth.force64(first.taps)
    assert forced is not None
    equal(forced.taps["b"], first.taps["a"].astype(np.float64))
    assert net.a.weight.dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32
    assert truth.float64_problem == ""


def test_a_model_that_cannot_run_in_float64() -> None:
    matrix = [torch.eye(4)]
    truth = reference(Net(chain, a=nn.Identity(), b=Do(lambda x: x @ matrix[0]), c=nn.Identity()), X)
    assert truth.run64() is None
    assert "float64" in truth.float64_problem
    assert truth.force64({}) is None
    assert torch.get_default_dtype() == torch.float32
    truth.run()


def test_unused_blocks_and_unknown_values() -> None:
    truth = reference(Net(lambda self, x: self.a(x), a=nn.Identity(), unused=nn.Linear(1, 1)), X)
    assert [p.block for p in truth.run().points] == ["a"]
    assert truth.force({"unused": np.zeros(1)}).unforced == ("unused",)


# Taps for a second conversion


class TwoConvs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, padding=1)
        self.c2 = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.c2(torch.relu(self.c1(x))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.b(x)
        y += 1
        return {"o": self.act(self.b(y)) * scale}


def test_tapped_module_in_torch() -> None:
    net = Twice().eval()
    truth = reference(net, torch.randn(2, 8), scale=torch.ones(1))
    first = truth.run()
    keys = ["act", "b@2", "b"]
    module = tapped_module(truth, keys)
    assert type(module).__name__ == "Twice"
    assert isinstance(module, Twice)
    assert inspect.signature(module.forward) == inspect.signature(net.forward)
    for _ in range(2):
        output, taps = module(*truth.args, **truth.kwargs)
        equal(output["o"].detach(), first.outputs["['o']"])
        for key, tap in zip(keys, taps, strict=True):
            equal(tap.detach(), first.taps[key])
    assert type(net) is Twice
    assert not net.b._forward_hooks


def test_tapped_module_with_a_patched_forward_and_with_the_model_itself() -> None:
    net = Net(chain, a=nn.Identity(), b=nn.Identity(), c=nn.Identity()).eval()
    net.forward = net.forward  # as libraries that wrap it do
    truth = TorchReference(net, (X,), {}, select(net, ["(model)", "a"]))
    output, (root, a) = tapped_module(truth, ["(model)", "a"])(X)
    equal(root, X)
    equal(a, X)
    equal(output, X)


def test_tapped_module_with_an_unknown_key() -> None:
    truth = reference(Twice(), torch.randn(2, 8), torch.ones(1))
    with pytest.raises(UnfitReferenceError, match="b@3"):
        tapped_module(truth, ["b@3"])


@pytest.mark.parametrize(
    ("net", "args", "kwargs"),
    [
        (TwoConvs(), (torch.randn(1, 3, 8, 8),), {}),
        (Twice(), (), {"x": torch.randn(2, 8), "scale": torch.rand(1)}),
    ],
    ids=["two convolutions", "a block called twice"],
)
def test_tapped_module_converts(net: nn.Module, args: Any, kwargs: Any) -> None:
    litert_torch = pytest.importorskip("litert_torch")
    truth = reference(net, *args, **kwargs)
    first = truth.run()
    keys = [point.key for point in first.points]
    converted = litert_torch.convert(tapped_module(truth, keys), sample_args=args or None, sample_kwargs=kwargs or None)
    results = converted(*args, **kwargs)
    expected = [*first.outputs.values(), *(first.taps[key] for key in keys)]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-4, atol=1e-6)
