"""Exponentials that a model writes out are the same numbers when they are kept as exponents, and right on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rewritten import Part, difference, errors_on_gpu, proposals, rewritten

exp = torch.exp


def softmax(x: torch.Tensor) -> torch.Tensor:
    return exp(x) / exp(x).sum(-1, keepdim=True)


def attention(x: torch.Tensor) -> torch.Tensor:
    e = exp(x @ x.transpose(-1, -2) * 0.125)
    return (e @ x) / (e.sum(-1).unsqueeze(-1) + 1e-6)


def guarded_softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 20, x, torch.log1p(exp(x)))


def tanh(x: torch.Tensor) -> torch.Tensor:
    return (exp(x) - exp(-x)) / (exp(x) + exp(-x))


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a factor that brings it back": lambda x: exp(x) * 3e-9 * 2,
    "softmax": softmax,
    "softmax of very small ones": lambda x: softmax(x - 60),
    "softmax with an epsilon": lambda x: exp(x) / (exp(x).sum(-1, keepdim=True) + 1e-8),
    "log of a softmax": lambda x: torch.log(softmax(x)),
    "softmax with weights": lambda x: exp(x) * torch.sigmoid(x) / (exp(x) * torch.sigmoid(x)).mean(-1, keepdim=True),
    "attention": attention,
    "log-sum-exp": lambda x: torch.log(exp(x).sum(-1)),
    "log-mean-exp": lambda x: torch.log(exp(2 * x).mean((-2, -1))) / 2,
    "log(1 + exp)": lambda x: torch.log(1 + exp(x)),
    "log1p(exp)": lambda x: torch.log1p(exp(x)),
    "log1p(exp) up to 20": guarded_softplus,
    "log of a sum of two": lambda x: torch.log(exp(x) + exp(x.flip(-1))),
    "log of a sum of three": lambda x: torch.log(exp(x) + 2 * exp(-x) + 0.5),
    "log cosh": lambda x: torch.log((exp(x) + exp(-x)) / 2),
    "sigmoid": lambda x: 1 / (1 + exp(-x)),
    "sigmoid as a quotient": lambda x: exp(x) / (exp(x) + 1),
    "sigmoid as a power": lambda x: (1 + exp(-x)).reciprocal() + (1 + exp(-x)) ** -1,
    "silu": lambda x: x / (1 + exp(-x)),
    "tanh": tanh,
    "tanh of twice": lambda x: (exp(2 * x) - 1) / (exp(2 * x) + 1),
    "root of a quotient": lambda x: torch.sqrt(exp(x) / (exp(x) + 3)) + torch.rsqrt(exp(-x).square() + 1),
    "softplus": lambda x: F.softplus(x),
    "softplus, steeper": lambda x: F.softplus(x, beta=2.5),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(-1)),
}  # fmt: skip
RIGHT = {"softmax", "softmax of very small ones", "sigmoid", "sigmoid as a power", "silu", "logsigmoid", "logaddexp"}
"""Right as they are here: the converter sees the softmax and takes the last two apart, and 1 / inf is 0."""
WRONG = CASES.keys() - RIGHT
SIZES = torch.tensor([30.0, 3.0, 0.3, 20.0])[:, None]
"""Rows of different sizes, so that one factor does not fit all."""


def rows(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linspace(-1, 1, 16)[None, None] * SIZES + torch.randn(1, 4, 16, generator=generator) * 0.5


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=4)
@given(seed=st.integers(1, 99))
def test_the_numbers_are_the_same(name: str, seed: int) -> None:
    function, x = CASES[name], rows(0)
    new = rewritten("exponentials", Part(function), x)
    for given_ in (x, rows(seed), rows(seed) / 10):
        wide = given_.double()
        # torch's own softplus drops exp(-20).
        assert difference(function(wide), new(wide)) < (1e-9 if "softplus" in name or "20" in name else 1e-12)
        assert difference(function(wide), new(given_).double()) <= max(
            2e-6, 2 * difference(function(wide), function(given_).double())
        )


def test_the_gpu_is_right(tmp_path: Path) -> None:
    # All in one graph; each has an input of its own, for a graph that returns one tensor twice leaves one unwritten.
    module = Part(lambda x: tuple(function(x * (1 + i / 64)) for i, function in enumerate(CASES.values())))
    x = rows(0)
    found = errors_on_gpu({"before": module, "after": rewritten("exponentials", module, x)}, (x,), tmp_path)
    wrong = {
        run: {name for name, error in zip(CASES, errors, strict=True) if not error < 1e-2}
        for run, (errors, _) in found.items()
    }
    assert wrong["after"] == set(), found["after"]
    assert wrong["before"] >= WRONG, found["before"]


def test_what_stays_in_range_is_left_alone() -> None:
    x = torch.randn(1, 4, 16)
    functions = [function for name, function in CASES.items() if "small" not in name]
    functions += [lambda x: exp(x * 5), lambda x: exp(x * 5) * x, lambda x: torch.log(x.abs() + 1)]
    assert proposals("exponentials", Part(lambda x: tuple(function(x) for function in functions)), x) == []
