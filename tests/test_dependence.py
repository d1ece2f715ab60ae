"""What follows from no input, through views, in-place writes, numbers that Python reads, and state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from bisect_litert.models.blocks import select
from bisect_litert.models.dependence import constant_returns


class Part(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.compute(x, table)


class Model(nn.Module):
    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.part = Part(compute)
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.part(x, self.table)


def into_a_view(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    table[1:2].copy_(x[1:2])
    return table


def by_foreach(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([table], [x])
    return table


def by_decision(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table if bool((x == x).all()) else -table


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, table: table.sin() * 2,
        lambda x, table: torch.arange(x.shape[0])[:, None] + table,
        lambda x, table: table[:, :2].repeat(1, 2).add_(1),
        by_decision,
    ],
)
def test_follows_from_no_input(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    assert found(compute) == {("part", 1, "")}


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, table: table * x,
        lambda x, table: x.T.T,
        lambda x, table: table.clone().index_put_((torch.tensor(0),), x[0]),
        lambda x, table: torch.full((3, 4), float(x.sum())),
        lambda x, table: torch.nn.functional.embedding(x.long().clamp(0, 2), table),
        lambda x, table: torch.add(table, x, out=torch.empty(3, 4)),
        into_a_view,
        by_foreach,
    ],
)
def test_follows_from_an_input(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    assert found(compute) == frozenset()


def found(compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> frozenset[tuple[str, int, str]]:
    model = Model(compute)
    before = model.table.clone()
    result = constant_returns(model, (torch.randn(3, 4),), {}, select(model, ("part",)))
    assert torch.equal(model.table, before)
    return result


def test_a_forward_that_fails_has_no_constants() -> None:
    assert found(lambda x, table: table @ x) == frozenset()
