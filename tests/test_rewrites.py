"""Every replacement of a library module computes what the module computes, and keeps its parameters' names."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bisect_litert.record import Cause
from bisect_litert.rewrites.catalogue import NAMES, rewrites
from bisect_litert.rewrites.contract import Rewrite
from bisect_litert.rewrites.region import Call, Region

MODULES = {
    "layer-norm": lambda: nn.LayerNorm(24),
    "layer-norm, two axes, no bias": lambda: nn.LayerNorm((3, 24), bias=False),
    "layer-norm, tiny epsilon": lambda: nn.LayerNorm(24, eps=1e-12),
    "layer-norm, plain": lambda: nn.LayerNorm(24, elementwise_affine=False),
}


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


def test_every_file_of_a_rewrite_is_in_the_catalogue_once() -> None:
    names = [r.name for r in rewrites()]
    assert len(set(names)) == len(names) == len(NAMES)
    for rewrite in rewrites():
        assert rewrite.causes
        assert all((rewrite.title, rewrite.symptom, rewrite.why, rewrite.rewrite, rewrite.limits))
