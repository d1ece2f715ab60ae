"""Rewrites of what the GPU refuses, or puts into the wrong place, give the same numbers bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rewritten import Part, difference, leaves, on_gpu, proposals, rewritten
from torch import nn

from benchmarks.fix_examples import EXAMPLES
from bisect_litert.devices.jobs import Job
from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.conversion import convert, input_names
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.rewrites.picked_rows import runs


def heads(x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.reshape(1, 16, 4, 3, 8).permute(3, 0, 2, 1, 4).unbind(0)
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def windows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1, 2, 4, 2, 4, 8).permute(0, 1, 3, 2, 4, 5).reshape(4, 16, 2, 4).transpose(1, 2)


def masked_windows(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    w = windows(x)
    scores = (w @ w.transpose(-1, -2)).reshape(1, 4, 2, 16, 16) + mask[:, :, None]
    return torch.softmax(scores, -1).reshape(4, 2, 16, 16) @ w


CASES: dict[str, tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = {
    "grouped queries": ("rank-four", lambda x: x[:, :, None].expand(1, 2, 4, 5, 6).reshape(1, 8, 5, 6), [(1, 2, 5, 6)]),
    "interleaved": ("rank-four", lambda x: x.repeat_interleave(3, 1) * 2, [(2, 4, 5)]),
    "repeated": ("rank-four", lambda x: x.repeat(1, 4, 1, 2) * 2, [(1, 2, 10, 16)]),
    "repeated often": ("rank-four", lambda x: x.expand(37, 5) * 2, [(1, 5)]),
    "windows": ("rank-four", windows, [(1, 8, 8, 8)]),
    "packed heads": ("rank-four", heads, [(1, 16, 96)]),
    "masked windows": ("rank-four", masked_windows, [(1, 8, 8, 8), (1, 4, 16, 16)]),
    "six axes": ("rank-four", lambda x: x.reshape(2, 3, 4, 2, 3, 2).permute(5, 3, 1, 0, 4, 2).flatten(), [(4, 72)]),
    "sums of five axes": ("rank-four", lambda x: x.reshape(2, 3, 2, 2, 5).sum(2).mean((0, 1)), [(12, 10)]),
    "slices of five axes": ("rank-four", lambda x: x.reshape(2, 3, 2, 4, 5)[:, 1:, :, ::2].reshape(4, -1), [(24, 10)]),
    "parts of five axes": ("rank-four", lambda x: x.reshape(2, 6, 1, 2, 5).chunk(4, 1)[2].reshape(2, -1), [(24, 5)]),
    "joined": ("rank-four", lambda x: torch.stack([x, x * 2], 2).reshape(4, -1), [(2, 2, 3, 4)]),
    "normed": ("rank-four", lambda x: F.layer_norm(x.reshape(1, 2, 2, 3, 4), (3, 4)).reshape(4, -1), [(4, 12)]),
    "clamped": ("clamp-to-one", lambda x: F.hardtanh(x, 0.0, 1.0), [(8, 8)]),
    "reflected line": ("reflection", lambda x: F.pad(x, (2, 1), mode="reflect"), [(1, 4, 9)]),
    "reflected": ("reflection", lambda x: F.pad(x, (2, 1, 1, 3), mode="reflect"), [(1, 4, 8, 9)]),
    "replicated": ("reflection", lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), [(1, 4, 8, 9)]),
    "cropped": ("reflection", lambda x: F.pad(x, (-2, 1), mode="replicate"), [(1, 4, 9)]),
    "circular": ("reflection", lambda x: F.pad(x, (2, 1, 1, 3), mode="circular"), [(1, 4, 8, 9)]),
    "picked": ("picked-rows", lambda x: x[:, [0, 3, 1, 2, 4, 6]], [(1, 8, 6)]),
    "picked to a square": ("picked-rows", lambda x: x[:, torch.tensor([[0, 7], [-1, 2]])], [(1, 8, 6)]),
    "sampled": ("grid-sampling", lambda x, g: F.grid_sample(x, g, align_corners=False), [(2, 3, 8, 7), (2, 4, 5, 2)]),
    "sampled, aligned": ("grid-sampling", lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
                         [(1, 3, 8, 7), (1, 4, 5, 2)]),
    "resized": ("nearest-resize", lambda x: F.interpolate(x, size=(11, 13), mode="nearest"), [(2, 4, 7, 9)]),
    "resized by a factor": ("nearest-resize", lambda x: F.interpolate(x, scale_factor=1.7), [(2, 4, 7, 9)]),
    "resized exactly": ("nearest-resize", lambda x: F.interpolate(x, size=5, mode="nearest-exact"), [(1, 4, 7, 9)]),
    "flipped": ("flipped", lambda x: x.flip(-1), [(1, 8, 6)]),
    "flipped twice": ("flipped", lambda x: x.flip(-1, 1), [(1, 3, 5, 6)]),
    "a sum and its mean": ("returned-copies", lambda x, y: ((x + y).mean(1), x + y), [(1, 10, 32), (1, 10, 32)]),
    "an input": ("returned-copies", lambda x: (x * 2, x), [(1, 10, 32)]),
    "one tensor twice": ("returned-copies", lambda x: (lambda a: (a, a))(x * 2), [(1, 10, 32)]),
}  # fmt: skip


def case(name: str) -> tuple[str, nn.Module, list[torch.Tensor]]:
    rewrite, function, shapes = CASES[name]
    torch.manual_seed(0)
    return rewrite, Part(function), [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_the_same(name: str) -> None:
    rewrite, module, inputs = case(name)
    new = rewritten(rewrite, module, *inputs)
    for wanted, got in zip(leaves(module(*inputs)), leaves(new(*inputs)), strict=True):
        assert got.shape == wanted.shape
        torch.testing.assert_close(got, wanted, rtol=2e-7, atol=1e-7)  # sums and relu6(6 x) / 6 round
    doubles = [x.double() for x in inputs]
    assert difference(module(*doubles), new.double()(*doubles)) < 1e-15


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0] == "rank-four"])
def test_no_tensor_has_five_axes_and_none_is_expanded(name: str) -> None:
    rewrite, module, inputs = case(name)
    nodes = ExportedModel(rewritten(rewrite, module, *inputs), tuple(inputs), {}, decompose=False).nodes()
    assert [n for n in nodes if len(n.shape) > 4 or "expand" in n.target] == []


@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.integers(1, 3), min_size=5, max_size=7), seed=st.randoms(use_true_random=False))
def test_any_permutation_of_many_axes(sizes: list[int], seed: Any) -> None:
    order = list(range(len(sizes)))
    seed.shuffle(order)
    x = torch.randn(sizes).reshape(-1)
    module = Part(lambda x: x.reshape(sizes).permute(order).reshape(-1) * 2.0)
    assert torch.equal(rewritten("rank-four", module, x)(x), module(x))


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=5, max_size=6),
    ones=st.lists(st.booleans(), min_size=6, max_size=6),
    held=st.booleans(),
)
def test_tensors_of_many_axes_that_broadcast(sizes: list[int], ones: list[bool], held: bool) -> None:
    other = torch.randn([1 if one else size for one, size in zip(ones, sizes, strict=False)])
    x = torch.randn(sizes).reshape(-1)

    def function(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (x.reshape(sizes) * other).reshape(-1)

    module, inputs = (Part(function, other), (x,)) if held else (Part(function), (x, other.reshape(-1)))
    if not held:
        module = Part(lambda x, y: function(x, y.reshape(other.shape)))
    assert torch.equal(rewritten("rank-four", module, *inputs)(*inputs), module(*inputs))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_runs_of_indices_are_the_indices(indices: list[int]) -> None:
    assert [first + i * step for first, count, step in runs(indices) for i in range(count)] == indices


def test_indices_that_depend_on_the_input_stay() -> None:
    x, at = torch.randn(1, 8, 6), torch.tensor([1, 0])
    assert proposals("picked-rows", Part(lambda x, at: x[:, at]), x, at) == []


GPU = ["grouped queries", "windows", "clamped", "sampled", "sampled, aligned", "resized", "reflected line", "picked",
       "flipped", "a sum and its mean", "one tensor twice"]  # fmt: skip


@pytest.mark.parametrize("name", GPU)
def test_the_gpu_takes_it_and_is_right(name: str, tmp_path: Path) -> None:
    rewrite, module, inputs = case(name)
    if len(leaves(module(*inputs))) == 1:
        module = Part(lambda *x, f=module: f(*x) * 1.5)  # so that the refused op is not the only one
    new = rewritten(rewrite, module, *inputs)
    found = on_gpu({"before": module, "after": new}, tuple(inputs), tmp_path)
    error, refused = found["before"]
    assert refused or not error < 1e-2
    error, refused = found["after"]
    assert not refused
    assert error < 2e-3


def test_barriers_keep_the_runtime_alive(tmp_path: Path) -> None:
    module, inputs = EXAMPLES["barriers"]()
    norm, x = module.blocks[1], inputs[0]  # type: ignore[index]
    variants = [r.build(norm) for r in proposals("barriers", norm, x)]
    assert len(variants) == 2  # behind the means, and everywhere
    jobs = []
    for number, variant in enumerate([norm, *variants]):
        assert torch.equal(variant(x), norm(x))
        path = tmp_path / f"{number}.tflite"
        graph = convert(variant, (x,), {}, path, tmp_path / "log")
        jobs.append(Job(f"run-{number}", path, "gpu", input_names(graph, (x,), {})))
    with Runner(tmp_path / "run", 300.0) as runner:
        results = runner.run(jobs)
    assert [result.status for result in results.values()] == ["crashed", "ok", "ok"]
