"""Models in forms that the converter does not take: what is done about each, and what is said."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from small_models import Block, numbers
from torch import nn

from bisect_litert.errors import ModelFileError
from bisect_litert.models import structure
from bisect_litert.models.eager import call, copy_module
from bisect_litert.models.plain import returning_tensors, uncompiled, wrap_forward
from bisect_litert.models.preparation import describe_inputs, prepare


class Flagged(nn.Module):
    """Takes what is no tensor between tensors, and returns None beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(8)

    def forward(self, x: torch.Tensor, factor: float, mask: Any, y: torch.Tensor, *, mode: str = "off") -> Any:
        z = self.block(x) * factor + y
        return z if mode == "off" else (z, None, {"mean": z.mean(), "mode": mode})


def flagged() -> Any:
    return prepare(Flagged(), (numbers(2, 8), 2.0, None, numbers(2, 8, seed=1)))


def test_what_is_no_tensor_becomes_part_of_the_model() -> None:
    module = Flagged()
    x, y = numbers(2, 8), numbers(2, 8, seed=1)
    loaded = prepare(module, (x, 2.0, None, y))
    assert loaded.args == (x, y)
    assert loaded.kwargs == {}
    assert list(inspect.signature(loaded.module.forward).parameters) == ["x", "y", "mode"]
    assert torch.equal(call(loaded.module, loaded.args, {}), module(x, 2.0, None, y))
    assert torch.equal(call(copy_module(loaded.module), loaded.args, {}), module(x, 2.0, None, y))
    assert type(module) is Flagged  # a copy was changed, under the same name
    assert type(loaded.module).__qualname__ == "Flagged"
    assert [name for name, _ in loaded.module.named_modules()] == [name for name, _ in module.named_modules()]
    assert any(note.startswith("factor=2.0, mask=None: part of the model") for note in loaded.notes)


def test_keywords_that_are_no_tensors_become_part_of_it_too() -> None:
    inputs = {"x": numbers(2, 8), "y": numbers(2, 8, seed=1), "factor": 3, "mask": [None, ()], "mode": "on"}
    loaded = prepare(Flagged(), inputs)
    assert set(loaded.kwargs) == {"x", "y"}
    assert list(inspect.signature(loaded.module.forward).parameters) == ["x", "y"]
    assert call(loaded.module, (), loaded.kwargs)[2]["mode"] == "on"


def test_a_forward_of_the_instance_is_wrapped_as_well() -> None:
    module = Flagged()
    module.forward = lambda x, factor: x * factor  # type: ignore[method-assign, assignment]
    loaded = prepare(module, (numbers(2), 4.0))
    assert list(inspect.signature(loaded.module.forward).parameters) == ["x"]
    assert torch.equal(loaded.module(numbers(2)), numbers(2) * 4)


def test_positional_only_parameters_keep_their_place() -> None:
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor, flag: bool, /, *rest: torch.Tensor) -> torch.Tensor:
            return x + sum(rest) if flag else x

    loaded = prepare(Strict(), (numbers(2), True, numbers(2), numbers(2)))
    assert list(inspect.signature(loaded.module.forward).parameters) == ["x", "rest"]
    assert torch.equal(loaded.module(*loaded.args), numbers(2) * 3)


def test_nested_inputs_are_called_by_argument_and_path() -> None:
    class Nested(nn.Module):
        def forward(self, xs: Any, cache: Any) -> torch.Tensor:
            return xs[1] + cache["k"]

    named = describe_inputs(prepare(Nested(), {"xs": [numbers(2), numbers(3)], "cache": {"k": numbers(3)}}))
    assert [i.name for i in named] == ["xs[0]", "xs[1]", "cache['k']"]
    assert [i.name for i in describe_inputs(flagged())] == ["0", "1"]


def test_torch_compile_is_taken_off() -> None:
    whole = prepare(torch.compile(nn.Sequential(Block(8), Block(8))), numbers(2, 8))
    assert [name for name, _ in whole.module.named_children()] == ["0", "1"]
    assert "torch.compile was taken off the model: what it wraps is tested." in whole.notes
    parts = nn.Sequential(Block(8), torch.compile(Block(8)))
    without, notes = uncompiled(parts)
    assert [type(part) for part in without] == [Block, Block]
    assert [type(part) for part in parts] != [Block, Block]
    assert notes == ("torch.compile was taken off 1: what it wraps is tested.",)
    assert uncompiled(without) == (without, ())


def test_torchscript_is_no_model_to_test() -> None:
    traced = torch.jit.trace(Block(8), numbers(2, 8))
    with pytest.raises(ModelFileError, match=r"^The model is a TorchScript module") as caught:
        prepare(traced, numbers(2, 8))
    assert "Python module that it was made of" in caught.value.hint
    with pytest.raises(ModelFileError, match=r"^1 is a TorchScript module"):
        prepare(nn.Sequential(Block(8), traced), numbers(2, 8))


def test_tensors_made_in_inference_mode_are_made_anew() -> None:
    with torch.inference_mode():
        module, x = Block(8), numbers(2, 8)
    loaded = prepare(module, x)
    assert not any(t.is_inference() for t in (*loaded.module.parameters(), *loaded.args))
    assert torch.equal(loaded.args[0], x)
    torch.export.export(loaded.module, loaded.args)


def test_only_the_tensors_of_what_is_returned() -> None:
    loaded = prepare(Flagged(), (numbers(2, 8), 2.0, None, numbers(2, 8, seed=1)))
    wrap_forward(loaded.module, lambda inner, *given: inner(*given, mode="on"))
    output = loaded.module(*loaded.args)
    assert not structure.only_tensors(output)
    bare = returning_tensors(loaded.module)(*loaded.args)
    assert structure.only_tensors(bare)
    assert [torch.equal(a, b) for a, (_, b) in zip(bare, structure.leaves(output), strict=True)] == [True, True]
