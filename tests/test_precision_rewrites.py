"""Rewrites of what loses digits are the same numbers in fp64, and right on the GPU where the original is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rewritten import Part, difference, on_gpu, proposals, rewritten
from torch import nn

FREQUENCIES = 10000 ** (-torch.arange(0, 32, dtype=torch.float64) / 32)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    far = x.abs().amax(-1, keepdim=True) * 1000
    return ((x + far) - x.abs().amax(-1, keepdim=True) * 1000) * 1.5


def difference_of_means(x: torch.Tensor) -> torch.Tensor:
    y = x + 30
    return ((y**2).mean(-1, keepdim=True) - y.mean(-1, keepdim=True) ** 2) + x * 0.1


def normalised(x: torch.Tensor) -> torch.Tensor:
    m = x.mean(-1, keepdim=True)
    return (x - m) * torch.rsqrt((x * x).mean(-1, keepdim=True) - m.pow(2) + 1e-5)


def sums(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 50
    return y.square().sum(-1) / 64 - (y.sum(-1) / 64).square() + x[..., 0]


def index(x: torch.Tensor) -> torch.Tensor:
    flat = torch.floor(x) * 128 + torch.floor(x * 0.25) + 3
    return torch.remainder(flat, 128.0) + torch.floor(flat / 128.0)


CASES: dict[str, tuple[str, Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "layer norm of an offset": ("cancelling", lambda x: F.layer_norm(x + 1e3, (64,)), lambda: (torch.randn(1, 9, 64),)),
    "softmax of an offset": ("cancelling", lambda x: torch.softmax(x + 500, -1), lambda: (torch.randn(1, 16, 64),)),
    "variance of an offset": ("cancelling", lambda x: (x - 700).var(-1), lambda: (torch.randn(1, 16, 64),)),
    "there and back": ("cancelling", lambda x: ((x + 1000.0) - 1000.0) * 1.5, lambda: (torch.randn(1, 16, 64),)),
    "there and back by a tensor": ("cancelling", there_and_back, lambda: (torch.randn(1, 16, 64),)),
    "there and back by an input": ("cancelling", lambda x, b: (x + b - b) * 1.5,
                                   lambda: (torch.randn(1, 8, 64), torch.full((1, 8, 64), 1500.0))),
    "a difference of means": ("cancelling", difference_of_means, lambda: (torch.randn(1, 16, 64),)),
    "a difference of means of an input": ("cancelling", normalised, lambda: (torch.randn(1, 16, 64) + 3,)),
    "a difference of sums": ("cancelling", sums, lambda: (torch.randn(1, 16, 64),)),
    "a mean of what repeats": ("cancelling", lambda x, y: (x + y).mean(-1, keepdim=True) - y,
                               lambda: (torch.randn(2, 8), torch.full((2, 1), 900.0))),
    "index arithmetic": ("cancelling", index, lambda: (torch.randint(0, 400, (1, 16, 64)) + 0.5,)),
    "a cumulative sum": ("block-sums", lambda x: x.cumsum(1) * 0.01, lambda: (torch.rand(1, 4096, 4) + 1,)),
    "a cumulative sum of odd length": ("block-sums", lambda x: x.cumsum(-1) * 0.01, lambda: (torch.rand(3, 999) + 1,)),
}  # fmt: skip
GPU = ["layer norm of an offset", "there and back", "there and back by a tensor", "a difference of means",
       "index arithmetic", "a cumulative sum"]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 99))
def test_the_numbers_are_the_same_in_fp64(name: str, seed: int) -> None:
    rewrite, function, make = CASES[name]
    torch.manual_seed(seed)
    inputs, module = make(), Part(function)
    new = rewritten(rewrite, module, *inputs)
    wide = [x.double() for x in inputs]
    truth = module(*wide)
    assert difference(truth, new.double()(*wide)) < 1e-12
    # In fp32 the original rounds where it loses digits, so the new one is held against fp64.
    assert difference(truth, new.float()(*inputs).double()) <= max(1e-6, difference(truth, module(*inputs).double()))


@pytest.mark.parametrize("name", GPU)
def test_the_gpu_is_right(name: str, tmp_path: Path) -> None:
    rewrite, function, make = CASES[name]
    torch.manual_seed(0)
    inputs, module = make(), Part(function)
    found = on_gpu({"before": module, "after": rewritten(rewrite, module, *inputs)}, inputs, tmp_path)
    assert found["before"][0] > 2e-2
    assert found["after"][0] < 2e-3


def test_what_does_not_cancel_is_left_alone() -> None:
    x = torch.randn(1, 16, 64)
    for function in (
        lambda x: x + 1000,
        lambda x: (x + 1000) * 2 - x.abs(),
        lambda x: x.square().mean(-1) - x.abs().mean(-1).square(),
        lambda x: x.square().mean(-1) - x.mean(-2).mean(-1, keepdim=True).square(),
        lambda x: F.layer_norm(x + x.mean(-2, keepdim=True), (64,)),
        lambda x: torch.remainder(x * 128, 128.0),
        lambda x: torch.remainder(torch.floor(x) * 100, 128.0),
    ):
        assert proposals("cancelling", Part(function), x) == []


@settings(deadline=None, max_examples=20)
@given(
    factors=st.lists(st.integers(-300, 300), min_size=1, max_size=3),
    divisor=st.sampled_from([2, 3, 7, 16, 128]),
    offset=st.integers(-200, 200),
    seed=st.integers(0, 9),
    how=st.sampled_from(["quotient", "floor division", "rounded"]),
)
@example(factors=[5, 297], divisor=3, offset=0, seed=0, how="quotient")
@example(factors=[5, 297], divisor=3, offset=0, seed=0, how="floor division")
def test_whole_numbers_modulo_a_whole_number(
    factors: list[int], divisor: int, offset: int, seed: int, how: str
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(3, 5, dtype=torch.float64) * 100

    def flat(x: torch.Tensor) -> torch.Tensor:
        total: Any = offset
        for power, factor in enumerate(factors):
            total = total + torch.floor(x * 2.0**power) * float(factor)
        return total  # type: ignore[no-any-return]

    def quotient(x: torch.Tensor) -> torch.Tensor:
        if how == "rounded":
            return torch.div(x, float(divisor), rounding_mode="floor")
        return torch.floor(x / float(divisor)) if how == "quotient" else torch.floor_divide(x, float(divisor))

    module = Part(lambda x: torch.remainder(flat(x), float(divisor)) + quotient(flat(x)))
    for replacement in proposals("cancelling", module, x):
        assert difference(module(x), replacement.build(module)(x)) < 1e-9


class Waves(nn.Module):
    """Rotary angles of integer positions, as model code computes them."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("frequencies", FREQUENCIES.float())

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        p = positions.to(self.frequencies.dtype)
        if self.how == "matrix":
            angles = (self.frequencies[None, :, None] @ p[:, None, :]).transpose(1, 2)
        elif self.how == "number":
            angles = p[..., None] * 0.37
        elif self.how == "quotient":
            angles = p[..., None] / (1.0 / self.frequencies)
        else:
            angles = p[..., None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        return angles.cos() + 2 * angles.sin()


@pytest.mark.parametrize("how", ["matrix", "number", "quotient", "product"])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
@settings(deadline=None, max_examples=5)
@given(first=st.integers(0, 200_000))
@example(first=131_048)
def test_angles_of_integer_positions(how: str, kind: torch.dtype, first: int) -> None:
    positions = torch.arange(first, first + 16, dtype=kind)[None]
    module = Waves(how).eval()
    new = rewritten("integer-phase", module, positions)
    f = torch.tensor([0.37], dtype=torch.float64) if how == "number" else FREQUENCIES.float().double()
    exact = positions[..., None].double() * (1 / (1.0 / f).float().double() if how == "quotient" else f)
    exact = torch.cat((exact, exact), -1)
    # A factor is off by half a part of 2^-32 turns at most, and cos + 2 sin has a slope of sqrt(5) at most.
    bound = 2e-6 + math.sqrt(5) * (first + 16) * math.pi * 2.0**-32
    assert (new(positions) - (exact.cos() + 2 * exact.sin())).abs().max() < bound


def test_the_gpu_takes_integer_angles(tmp_path: Path) -> None:
    positions = torch.arange(4000, 4016, dtype=torch.int32)[None]
    module = Waves("product").eval()
    new = rewritten("integer-phase", module, positions)
    found = on_gpu({"before": module, "after": new}, (positions,), tmp_path)
    assert found["before"][0] > 5e-2
    assert found["after"][0] < 3e-3


def test_positions_that_are_floats_already_are_left_alone() -> None:
    module = Part(lambda p: torch.sin(p[..., None] * FREQUENCIES.float()))
    assert proposals("integer-phase", module, torch.arange(16.0)[None]) == []


def test_long_products(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, convolution = nn.Linear(2048, 16), nn.Conv2d(512, 8, 1)
    for module in (layer, convolution):
        module.weight.data.mul_(0.05).add_(1)
    x = torch.cat([torch.full((1, 4, 1024), 40.0), torch.full((1, 4, 1024), -40.0)], -1) + torch.randn(1, 4, 2048)
    image = x[..., 768:1280].reshape(1, 512, 2, 2)
    for module, data in ((layer, x), (convolution, image)):
        new = rewritten("block-sums", module, data)
        assert difference(module.double()(data.double()), new.double()(data.double())) < 1e-12
        module.float()
        new.float()
    found = on_gpu({"before": layer, "after": rewritten("block-sums", layer, x)}, (x,), tmp_path)
    assert found["before"][0] > 0.1
    assert found["after"][0] < 0.05  # what rounding 40 to fp16 costs


def test_products_too_many_to_be_computed_at_once_mix_the_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.rewrites import block_sums

    monkeypatch.setattr(block_sums, "MANY", 0)
    module, x = nn.Linear(130, 8).double(), torch.randn(2, 3, 130, dtype=torch.float64)
    assert difference(module(x), rewritten("block-sums", module, x)(x)) < 1e-13
