"""Mixtures of experts, toy-sized: three ways to route tokens; every expert is computed, as a static graph wants it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, EXPERTS, TOKENS = 32, 4, 16
Case = tuple[nn.Module, Tensor]


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.outer(nn.functional.gelu(self.inner(x)))
        return out


class Mixture(nn.Module):
    """A residual layer of experts; what differs is how `weights` makes shares out of the router's scores."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def weights(self, scores: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        shares = self.weights(self.router(y))
        for number, expert in enumerate(self.experts):
            x = x + shares[..., number : number + 1] * expert(y)
        return x


class Soft(Mixture):
    """Every expert takes part."""

    def weights(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)


class TopK(Mixture):
    """The two best take part, weighted against each other."""

    def weights(self, scores: Tensor) -> Tensor:
        best, chosen = torch.topk(scores, 2, dim=-1)
        return torch.zeros_like(scores).scatter(-1, chosen, torch.softmax(best, dim=-1))


class Switch(Mixture):
    """The best one takes it all, with its own probability as a factor."""

    def weights(self, scores: Tensor) -> Tensor:
        shares = torch.softmax(scores, dim=-1)
        best = torch.argmax(shares, dim=-1, keepdim=True)
        chosen = best == torch.arange(EXPERTS)  # one_hot asserts that its input is in range, which does not convert
        return torch.where(chosen, shares, 0.0)


def _case(layer: type[Mixture]) -> Case:
    return nn.Sequential(layer(), layer()).eval(), torch.randn(1, TOKENS, WIDTH)


def soft() -> Case:
    return _case(Soft)


def top_k() -> Case:
    return _case(TopK)


def switch() -> Case:
    return _case(Switch)
