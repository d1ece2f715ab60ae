"""Models of every shape that the issue lists, from one call to a verdict; emulated but for one on the GPU."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from small_models import Block, numbers
from torch import nn

from bisect_litert import bisect
from bisect_litert.errors import ConversionError, UnfitReferenceError
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark, RunName, TapOrigin

Pair = namedtuple("Pair", "left right")


def run(module: nn.Module, inputs: Any, blocks: Any = ("*",), **options: Any) -> RunRecord:
    torch.manual_seed(0)
    return bisect(module, inputs, blocks=blocks, **{"no_gpu": True, **options})


def healthy(record: RunRecord) -> dict[str, Any]:
    """Asserts a clean verdict with every block judged, and returns the blocks by name."""
    assert record.verdict.cause is Cause.NONE, record.verdict
    assert not record.verdict.diverged
    assert {b.mark for b in record.blocks} == {Mark.OK}, [(b.name, str(b.mark)) for b in record.blocks]
    for output in record.outputs:
        assert output.comparison is not None, output.name
        assert output.comparison.relative_l2 < 1e-2
    return {b.name: b for b in record.blocks}


@dataclass
class State:
    hidden: torch.Tensor
    pair: Any


torch.export.register_dataclass(State)


class Do(nn.Module):
    def __init__(self, function: Any, width: int = 0) -> None:
        super().__init__()
        self.function = function
        if width:
            self.fc = nn.Linear(width, width)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Structures(nn.Module):
    """Blocks that return a tuple, a dict, a dataclass and a named tuple, nested in one another."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Do(lambda s, x: (s.fc(x), [torch.tanh(x)]), 16)
        self.b = Do(lambda s, pair: {"sum": pair[0] + pair[1][0], "more": {"fc": s.fc(pair[0])}}, 16)
        self.c = Do(lambda s, d: State(torch.sigmoid(d["sum"]), Pair(s.fc(d["more"]["fc"]), d["sum"] * 3)), 16)

    def forward(self, x: torch.Tensor) -> Any:
        state = self.c(self.b(self.a(x)))
        return {"hidden": state.hidden, "pair": (state.pair.left + 1, state.pair.right)}


def test_blocks_that_return_structures() -> None:
    record = run(Structures(), numbers(4, 16))
    blocks = healthy(record)
    labels = {f"{name}{tap.label}" for name, b in blocks.items() for tap in b.taps}
    assert labels == {
        "a[0]",
        "a[1][0]",
        "b['sum']",
        "b['more']['fc']",
        "c.hidden",
        "c.pair.left",
        "c.pair.right",
    }
    assert {o.name for o in record.outputs} == {"['hidden']", "['pair'][0]", "['pair'][1]"}
    assert all(tap.origin in (TapOrigin.GRAPH, TapOrigin.REEXPORT) for b in blocks.values() for tap in b.taps)


class Shared(nn.Module):
    """One block called three times, and one module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again, self.first = Block(16), Block(16)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.again(x)
        return self.second(self.first(x))


def test_blocks_that_are_called_several_times_or_shared() -> None:
    blocks = healthy(run(Shared(), numbers(4, 16)))
    assert {"again", "again@2", "again@3", "first", "first@2"} <= set(blocks)
    assert [blocks[f"again{n}"].call for n in ("", "@2", "@3")] == [1, 2, 3]
    assert all(b.ops == 3 for name, b in blocks.items() if name != "(output)")


class ManyInputs(nn.Module):
    """Token ids, a boolean mask, an input nobody reads; keyword arguments to a block; scalar and integer outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.mix = Do(lambda s, x, *, keep, scale: torch.where(keep.unsqueeze(-1), s.fc(x) * scale, x), 16)
        self.head = Block(16)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor, scale: torch.Tensor, unused: torch.Tensor) -> Any:
        x = self.head(self.mix(self.embed(ids), keep=keep, scale=scale))
        return x, x.mean(), x.argmax(-1), x.sum(-1) > 0, ids + 1


def many_inputs() -> dict[str, torch.Tensor]:
    return {
        "ids": torch.arange(12).reshape(2, 6),
        "keep": torch.arange(12).reshape(2, 6) % 3 > 0,
        "scale": torch.tensor([1.5]),
        "unused": numbers(3),
    }


def test_several_inputs_and_outputs_of_every_kind() -> None:
    record = run(ManyInputs(), many_inputs())
    blocks = healthy(record)
    assert {"embed", "mix", "head"} <= set(blocks)
    assert [i.name for i in record.inputs] == ["ids", "keep", "scale", "unused"]
    assert [i.dtype for i in record.inputs] == ["int64", "bool", "float32", "float32"]
    assert len(record.outputs) == 5


class Keyed(nn.Module):
    """Returns a dict whose keys are not in the order of the alphabet; the values have one shape and differ."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.up, self.down = Block(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        x = self.body(x)
        return {"logits": self.up(x), "aux": (self.down(x), x.mean(-1))}


def test_outputs_in_a_dict_are_told_apart_by_key() -> None:
    record = run(Keyed(), (numbers(4, 8),))
    healthy(record)
    assert [o.name for o in record.outputs] == ["['logits']", "['aux'][0]", "['aux'][1]"]


class Odd(nn.Module):
    """A scalar, a constant, and a block's own output; blocks that do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.keep = nn.Identity()
        self.b = Block(16)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("table", numbers(5, seed=4))

    def forward(self, x: torch.Tensor) -> Any:
        z = self.drop(self.b(self.keep(x)))
        return z, z.abs().sum(), self.table * 2


def test_odd_outputs_and_blocks_that_do_nothing() -> None:
    record = run(Odd(), numbers(4, 16))
    blocks = healthy(record)
    assert [o.name for o in record.outputs] == ["[0]", "[1]", "[2]"]
    assert blocks["keep"].taps[0].origin is TapOrigin.INPUT
    # Two blocks, one tensor: judged once, and not tapped twice.
    assert blocks["b"].taps[0].tensor == blocks["drop"].taps[0].tensor
    assert blocks["drop"].ops == 0 or blocks["drop"].ops == blocks["b"].ops


class Flagged(nn.Module):
    """Flags among the inputs, None and words among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Block(16), Do(lambda s, x: (s.fc(x), None, "kept"), 16)

    def forward(self, x: torch.Tensor, mask: Any = None, scale: float = 1.0, return_dict: bool = True) -> Any:
        x = self.a(x) * scale
        x = x if mask is None else x + mask
        out, _, word = self.b(x)
        return {"logits": out, "loss": None, "hidden": (x * 2, word)} if return_dict else (None, out)


def test_flags_and_none_among_inputs_and_outputs() -> None:
    record = run(Flagged(), {"x": numbers(4, 16), "mask": None, "scale": 2.0, "return_dict": True})
    healthy(record)
    assert [o.name for o in record.outputs] == ["['logits']", "['hidden'][0]"]
    assert [i.name for i in record.inputs] == ["x"]
    assert any(note.startswith("mask=None, scale=2.0, return_dict=True") for note in record.verdict.notes)


def test_a_batch_of_nothing_is_nothing_to_test() -> None:
    with pytest.raises(UnfitReferenceError, match="holds an element"):
        run(Block(16), numbers(0, 16))


def test_bfloat16_inside_is_told() -> None:
    with pytest.raises(ConversionError, match="computes in bfloat16 inside") as caught:
        run(Do(lambda s, x: s.fc(x) + x.bfloat16().float(), 16), numbers(4, 16))
    assert "torch.autocast" in caught.value.hint


class Twice(nn.Module):
    """The same tensor returned twice: LiteRT writes one of the two buffers only."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.c = Block(16), Block(16)

    def forward(self, x: torch.Tensor) -> Any:
        z = self.b(x)
        return z, self.c(z), z


def test_the_same_tensor_returned_twice_is_found_unwritten() -> None:
    record = run(Twice(), numbers(4, 16))
    assert (record.verdict.cause, record.verdict.diverged) == (Cause.UNWRITTEN_OUTPUT, True)
    assert [c.block for c in record.culprits] == ["b"]
    assert [o.comparison is not None and o.comparison.unwritten > 0 for o in record.outputs].count(True) == 1
    assert "Outputs [0] and [2] are one tensor of the graph" in record.culprits[0].evidence[0]


class HandsOn(nn.Module):
    """An input that is an output, which LiteRT does not write either."""

    def __init__(self) -> None:
        super().__init__()
        self.b = Block(16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.b(x), y


def test_an_input_that_is_an_output() -> None:
    record = run(HandsOn(), (numbers(4, 16), numbers(2, 3, seed=1)))
    assert record.verdict.diverged
    assert record.verdict.cause in (Cause.CONVERSION, Cause.UNWRITTEN_OUTPUT)
    assert [c.block for c in record.culprits] == ["(output)"]
    assert "never written" in record.verdict.summary
    assert {b.name: b.mark for b in record.blocks}["b"] is Mark.OK


def test_an_input_returned_beside_what_is_made_of_it_is_no_fault_of_the_conversion() -> None:
    record = run(Do(lambda s, x: (s.fc(x), x), 16), numbers(4, 16))
    assert {c.cause for c in record.culprits} == {Cause.UNWRITTEN_OUTPUT}
    assert "do not return an input unchanged" in record.verdict.next_step
    assert any("returns an input unchanged" in said for c in record.culprits for said in c.evidence)


class Counting(nn.Module):
    """Buffers that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.b = Block(16)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("running", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.running.mul_(0.9).add_(x.mean(0))
        return self.b(x + self.running) + self.calls


def test_buffers_that_forward_changes() -> None:
    module = Counting().eval()
    healthy(run(module, numbers(4, 16)))
    assert module.calls.item() == 0  # only copies of it ran


class NamedOutput(nn.Module):
    """A block with the name that the model's own output goes by, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.output, self.last = Block(16), Block(16), Block(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.output(self.first(x)) * 0.5) + 1


def test_a_block_named_output_is_not_the_models_output() -> None:
    record = run(NamedOutput(), numbers(4, 16))
    blocks = healthy(record)
    assert list(blocks) == ["first", "output", "last", "(output)"]
    assert [b.ops for b in blocks.values()] == [3, 3, 4, 1]
    assert [o.name for o in record.outputs] == ["output_0"]
    # Amplification is measured against what lies before it, not against itself.
    levels = [b.errors[RunName.FP16].cumulative for b in blocks.values()]
    assert all(level is not None for level in levels)
    assert len({level.relative_l2 for level in levels if level}) == 4


def test_on_the_gpu() -> None:
    record = run(ManyInputs(), many_inputs(), no_gpu=False)
    if record.target != "gpu":
        pytest.skip("no GPU here")
    healthy(record)
