"""Rewritten graphs compute what the module computes, in fp16's range, and are written as source that runs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bisect_litert.fixing import rewrites_file
from bisect_litert.fixing.trial import Step
from bisect_litert.rewrites.catalogue import rewrites
from bisect_litert.rewrites.contract import CannotRewrite, Replacement
from bisect_litert.rewrites.region import Call, Region, capture
from bisect_litert.vocabulary import Cause


class Part(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class Held(nn.Module):
    """A function of an input and a buffer."""

    def __init__(self, function: Callable[..., torch.Tensor], held: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("held", held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.held)


def proposals(name: str, module: nn.Module, *inputs: torch.Tensor) -> list[Replacement]:
    rewrite = next(r for r in rewrites() if r.name == name)
    region = Region("part", module.eval(), (Call(inputs, {}),), rewrite.causes[0])
    return list(rewrite.propose(region))


def difference(wanted: torch.Tensor, got: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def randn(*shape: int, k: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape) * k


RANGE = {
    "rms": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), 1e3),
    "layer norm by hand": (
        lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5),
        3e3,
    ),
    "variance as mean of squares": (lambda x: x / (x.pow(2).mean(-1, keepdim=True)).sqrt(), 1e4),
    "normalize": (lambda x: F.normalize(x, dim=-1), 1e3),
    "cosine": (lambda x: F.cosine_similarity(x, x.flip(-1), dim=-1), 1e3),
    "cube": (lambda x: x.abs().pow(3) * 8e-9, 500.0),
    "product and back": (lambda x: (x * 1e5) * 1e-5, 1.0),
    "tiny and back": (lambda x: x * 1e-5 * 1e-5 * 1e10, 1.0),
    "softmax of large logits": (lambda x: torch.softmax(x * 1e4, -1), 30.0),
    "log softmax": (lambda x: torch.log_softmax(x * x, -1) * 1e-3, 500.0),
    "logsumexp": (lambda x: torch.logsumexp(x * 100, -1) * 1e-3, 800.0),
    "exp ratio": (lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True), 5.0),
    "log of exp": (lambda x: torch.log(torch.exp(x) + 1), 6.0),
    "log with epsilon": (lambda x: torch.log(torch.relu(x) + 1e-8), 1.0),
    "log of clamp": (lambda x: torch.log(x.clamp(min=1e-9)), 1.0),
    "softplus": (lambda x: F.softplus(x), 15.0),
    "sigmoid of a product": (lambda x: torch.sigmoid(x * x), 400.0),
    "sum and back": (lambda x: x.sum(-1, keepdim=True) * 1e-3, 3000.0),
    "group norm": (lambda x: F.group_norm(x.reshape(4, 8, 6), 2), 1e3),
    "instance norm": (lambda x: F.instance_norm(x.reshape(4, 4, 12)), 1e3),
    "batch norm of its own statistics": (lambda x: F.batch_norm(x, None, None, training=True), 1e3),
    "batch norm in evaluation": (
        lambda x: F.batch_norm(x, *(x.new_full((48,), k) for k in (1.0, 4.0, 1.0, 1.0))) * x * 1e-4,
        1e3,
    ),
    "cumulative sum": (lambda x: torch.cumsum(x, -1) * 1e-2, 5e3),
    "unscaled scores": (lambda x: torch.softmax(x @ x.transpose(-1, -2), -1) @ x, 60.0),
    "attention": (lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0], 200.0),
    "compared": (lambda x: torch.where(x * 1e4 > 0, x, x * 0.5), 20.0),
}


@cache
def scaled(name: str) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, nn.Module]:
    """A function, its input, and the function rewritten: an export each, so once for all tests."""
    function, size = RANGE[name]
    torch.manual_seed(0)
    x = randn(4, 48, k=size)
    (replacement,) = proposals("scale-tracking", Part(function), x)
    return function, x, replacement.build(Part(function))


@pytest.mark.parametrize("name", RANGE)
def test_scaled_values_are_the_same_values(name: str) -> None:
    function, x, new = scaled(name)
    for seed in range(3):
        torch.manual_seed(seed)
        other = x if seed == 0 else torch.randn_like(x) * x.std()
        assert difference(function(other), new(other)) < 1e-6
    wide = x.double()
    # Not 1e-14: where an epsilon is nothing in fp16 it is raised as far as 2^-18 of what it is added to.
    assert difference(function(wide), new.double()(wide)) < 5e-6
    new.float()


class InRange(torch.utils._python_dispatch.TorchDispatchMode):
    """Computes like fp16 and notes what left its range."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            rounded = result.half().to(result.dtype)
            if bool((~rounded.isfinite() & result.isfinite()).any()):
                self.lost.append(str(function))
            return rounded
        return result


@pytest.mark.parametrize("name", RANGE)
def test_scaled_values_fit_half_precision(name: str) -> None:
    function, x, new = scaled(name)
    with torch.no_grad(), InRange() as mode:
        got = new(x)
    assert mode.lost == []
    assert difference(function(x), got) < 0.02


@pytest.mark.parametrize("name", ["rms", "layer norm by hand", "cube", "product and back", "softmax of large logits"])
def test_the_ranges_of_those_functions_are_left_without_it(name: str) -> None:
    function, x, _ = scaled(name)
    with torch.no_grad(), InRange() as mode:
        function(x)
    assert mode.lost


def test_what_fp16_cannot_hold_at_the_border_is_refused() -> None:
    with pytest.raises(CannotRewrite, match="returns"):
        proposals("scale-tracking", Part(lambda x: x * 1e5), randn(4, 4))
    with pytest.raises(CannotRewrite, match="input"):
        proposals("scale-tracking", Part(lambda x: x * 1e-5), randn(4, 4, k=1e6))


def test_a_mask_of_any_size_is_cut_off_and_a_row_of_masked_scores_stays_even() -> None:
    mask = torch.ones(1, 1, 8, 8)
    mask[0, 0, 3] = 0
    for value in (-1e9, -1e30, float(torch.finfo(torch.float32).min)):

        def function(x: torch.Tensor, value: float = value) -> torch.Tensor:
            return torch.softmax(x + (1 - mask) * value, -1)

        x = randn(1, 2, 8, 8)

        class Masked(nn.Module):
            def forward(self, x: torch.Tensor, m: torch.Tensor, value: float = value) -> torch.Tensor:
                return torch.softmax(x + (1 - m) * value, -1)

        (replacement,) = proposals("scale-tracking", Masked(), x, mask)
        new = replacement.build(Masked())
        assert difference(function(x), new(x, mask)) < 1e-6
        with torch.no_grad(), InRange():
            assert new(x, mask).isfinite().all()


KERNEL = {
    "constant-operand": [
        (lambda x, c: x + c, (24, 16), (24, 16)),
        (lambda x, c: x * c, (6, 24, 16), (16,)),
        (lambda x, c: x - c, (1, 4, 16, 16), (1, 1, 16, 16)),
        (lambda x, c: x / (c.abs() + 1), (1, 4, 16, 16), (1, 4, 1, 16)),
        (lambda x, c: torch.maximum(x, c), (32, 64), (1, 1, 64)),
        (lambda x, c: F.scaled_dot_product_attention(x, x, x, attn_mask=c), (1, 4, 8, 16), (1, 1, 8, 8)),
        (lambda x, c: F.scaled_dot_product_attention(x, x, x, attn_mask=c > -1), (1, 4, 8, 16), (1, 1, 8, 8)),
    ],
    "padding": [
        (lambda x, c: F.pad(x, (2, 3)) + 0 * c, (6, 24, 16), (1,)),
        (lambda x, c: F.pad(x, (1, 0, 2, 2), value=3.0) + 0 * c, (6, 24, 16), (1,)),
        (lambda x, c: F.pad(x, (2, 3)) + 0 * c, (24, 16), (1,)),
    ],
    "padded-pooling": [
        (lambda x, c: F.avg_pool2d(x, 3, 2, 1) + 0 * c, (1, 4, 9, 11), (1,)),
        (lambda x, c: F.avg_pool2d(x, (2, 3), 1, (1, 0), count_include_pad=False) + 0 * c, (1, 4, 9, 11), (1,)),
    ],
    "batch-broadcast": [
        (lambda x, c: x @ (x[:1] * c).transpose(-1, -2), (4, 16, 8), (1,)),
        (lambda x, c: x @ (x[:, :1] * c).transpose(-1, -2), (2, 4, 16, 8), (1,)),
    ],
}


@pytest.mark.parametrize(("name", "case"), [(name, i) for name, cases in KERNEL.items() for i in range(len(cases))])
def test_another_form_gives_the_same_numbers(name: str, case: int) -> None:
    function, shape, constant = KERNEL[name][case]
    torch.manual_seed(0)
    module, x = Held(function, randn(*constant)), randn(*shape)
    replacement = proposals(name, module, x)[0]
    new = replacement.build(module)
    assert difference(module(x), new(x)) < 1e-6
    assert replacement.changes


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor, *, pair: dict[str, torch.Tensor], on: bool = True) -> dict[str, torch.Tensor]:
        y = x.relu_() if on else x
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + self.eps) * self.weight
        return {"a": y + pair["b"], "c": (y, None)}  # type: ignore[dict-item]


class Outer(nn.Module):
    extra = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("shift", torch.ones(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x * 1e3 + self.shift, pair={"b": x})
        return out["a"] + out["c"][0]  # type: ignore[index,no-any-return]


def test_nested_inputs_and_outputs_keep_their_form_and_the_file_stands_alone() -> None:
    torch.manual_seed(0)
    model, x = Outer().eval(), randn(2, 8)
    wanted = model(x)
    calls = capture(model, (x,), {}, ["inner"])
    region = Region("inner", model.inner, calls["inner"], Cause.OVERFLOW)
    (replacement,) = next(r for r in rewrites() if r.name == "scale-tracking").propose(region)
    source = rewrites_file.write("outer.py", [Step("inner", replacement)])
    changed = rewrites_file.apply(source, model)
    assert difference(wanted, changed(x)) < 1e-6
    assert changed.state_dict().keys() == model.state_dict().keys()
    assert isinstance(changed.inner, Inner)
    assert type(model.inner) is Inner  # the original stays
    assert "bisect_litert" not in source.partition('"""\n\nfrom __future__')[2]
    with torch.no_grad(), InRange() as mode:
        changed.inner(x * 1e3, pair={"b": x})
    assert mode.lost == []


def test_a_module_called_with_two_shapes_is_not_rewritten() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(lambda x: x * 1e5 * 1e-5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x).sum() + self.part(x[:1]).sum()

    model, x = Twice().eval(), randn(2, 8)
    calls = capture(model, (x,), {}, ["part"])
    region = Region("part", model.part, calls["part"], Cause.OVERFLOW)
    with pytest.raises(CannotRewrite, match="different shapes"):
        list(next(r for r in rewrites() if r.name == "scale-tracking").propose(region))


def test_ranges_of_all_calls_count() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part(lambda x: x * x / 256)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x) + self.part(x * 1000) * 0

    model, x = Twice().eval(), randn(2, 8)
    calls = capture(model, (x,), {}, ["part"])
    region = Region("part", model.part, calls["part"], Cause.OVERFLOW)
    (replacement,) = next(r for r in rewrites() if r.name == "scale-tracking").propose(region)
    with torch.no_grad(), InRange() as mode:
        replacement.build(model.part)(x * 1000)
    assert mode.lost == []


def test_numbers_are_written_as_they_are() -> None:
    from bisect_litert.rewrites.emission import number

    for value in (0.0, 1.0, 2.0, 0.1, -0.1, 2.0**-30, -(2.0**-30), 2.0**40, -16384.0, math.inf, -math.inf, 1e-45):
        assert eval(number(value), {"math": math}) == value
