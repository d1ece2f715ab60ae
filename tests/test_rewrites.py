"""Every replacement of a library module computes what the module computes, and keeps its parameters' names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bisect_litert.rewrites.catalogue import NAMES, rewrites
from bisect_litert.rewrites.contract import Rewrite
from bisect_litert.rewrites.region import Call, Region
from bisect_litert.vocabulary import Cause

MODULES = {
    "layer-norm": lambda: nn.LayerNorm(24),
    "layer-norm, two axes, no bias": lambda: nn.LayerNorm((3, 24), bias=False),
    "layer-norm, tiny epsilon": lambda: nn.LayerNorm(24, eps=1e-12),
    "layer-norm, plain": lambda: nn.LayerNorm(24, elementwise_affine=False),
    "rms-norm": lambda: nn.RMSNorm(24),
    "rms-norm, two axes, plain": lambda: nn.RMSNorm((3, 24), eps=1e-5, elementwise_affine=False),
    "rms-norm, by hand": lambda: HandRMSNorm(24),
    "rms-norm, by hand, gain beside 1": lambda: HandRMSNorm(24, eps=1e-5, beside=True),
    "group-norm": lambda: nn.GroupNorm(3, 3),
    "group-norm, one group, plain": lambda: nn.GroupNorm(1, 3, affine=False),
    "instance-norm": lambda: nn.InstanceNorm1d(3, affine=True),
    "instance-norm, no batch axis": lambda: nn.InstanceNorm2d(2, affine=True),
    "batch-norm": lambda: nn.BatchNorm1d(3, track_running_stats=False),
}


class HandRMSNorm(nn.Module):
    """An RMSNorm as model code writes it."""

    def __init__(self, width: int, eps: float = 1e-6, *, beside: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.small, self.beside = eps, beside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.small)
        return y * (1 + self.scale) if self.beside else self.scale * y


def region(module: nn.Module, *inputs: torch.Tensor, cause: Cause = Cause.OVERFLOW, kind: str = "") -> Region:
    return Region("part", module, (Call(inputs, {}),), cause, kind)


def named(name: str) -> Rewrite:
    return next(r for r in rewrites() if r.name == name.partition(",")[0])


def difference(wanted: torch.Tensor, got: torch.Tensor) -> float:
    wanted, got = wanted.detach(), got.detach()
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("double", [False, True], ids=["fp32", "fp64"])
@settings(deadline=None, max_examples=12)
@given(size=st.floats(1e-3, 3e4), offset=st.floats(-4, 4), seed=st.integers(0, 9))
def test_a_library_module_is_replaced_exactly(name: str, double: bool, size: float, offset: float, seed: int) -> None:
    torch.manual_seed(seed)
    module = MODULES[name]().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = (torch.randn(2, 3, 24) + offset) * size
    if double:
        module, x = module.double(), x.double()
    new = next(iter(named(name).propose(region(module, x)))).build(module)
    # Not 1e-7: d = x - mean loses digits where the offset is large, in torch's own kernel too, at other places.
    assert difference(module(x), new(x)) < (1e-13 if double else 2e-5)
    assert new.state_dict().keys() == module.state_dict().keys()


@pytest.mark.parametrize("name", MODULES)
def test_a_row_of_equal_values_divides_by_no_zero_in_half_precision(name: str) -> None:
    module = MODULES[name]().eval()
    x = torch.full((2, 3, 24), 7.0)
    new = next(iter(named(name).propose(region(module, x)))).build(module)
    assert new.half()(x.half()).isfinite().all()


@pytest.mark.parametrize("name", MODULES)
def test_squares_stay_in_range_in_half_precision(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    x = torch.randn(2, 3, 24) * 1e4
    new = next(iter(named(name).propose(region(module, x)))).build(module)
    assert difference(module(x), new.half()(x.half()).float()) < 1e-2


class Almost(nn.Module):
    """Nearly an RMSNorm."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(24))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) * self.weight


NEARLY = {
    "its largest value": lambda x: x / (x.abs().amax(-1, keepdim=True) + 1e-6),
    "its length": lambda x: F.normalize(x, dim=-1),
    "its mean taken off": lambda x: F.layer_norm(x, (24,)),
    "half of the row": lambda x: x * torch.rsqrt(x[..., :12].pow(2).mean(-1, keepdim=True) + 1e-6),
    "the row before": lambda x: x * torch.rsqrt(x.roll(1, 1).pow(2).mean(-1, keepdim=True) + 1e-6),
    "a bound": lambda x: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).clamp(max=2.0),
    "an epsilon outside the root": lambda x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-3),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_only_resembles_an_rms_norm_is_left_alone(name: str) -> None:
    torch.manual_seed(0)
    assert list(named("rms-norm").propose(region(Almost(NEARLY[name]).eval(), torch.randn(2, 3, 24)))) == []


@pytest.mark.parametrize("module", [nn.InstanceNorm1d(3, track_running_stats=True), nn.BatchNorm1d(3)])
def test_running_statistics_are_no_fault(module: nn.Module) -> None:
    name = "instance-norm" if isinstance(module, nn.InstanceNorm1d) else "batch-norm"
    assert list(named(name).propose(region(module.eval(), torch.randn(2, 3, 24)))) == []


def test_every_file_of_a_rewrite_is_in_the_catalogue_once() -> None:
    names = [r.name for r in rewrites()]
    assert len(set(names)) == len(names) == len(NAMES)
    for rewrite in rewrites():
        assert rewrite.causes
        assert all((rewrite.title, rewrite.symptom, rewrite.why, rewrite.rewrite, rewrite.limits))
