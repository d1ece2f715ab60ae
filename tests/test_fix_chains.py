"""A rewrite that uncovers a fault goes on to it: both are kept, or neither; real delegate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bisect_litert import entrances
from bisect_litert.fixing import engine
from bisect_litert.models import preparation
from bisect_litert.record import RunRecord
from bisect_litert.records.fix_record import CulpritFix, Outcome, Reached
from bisect_litert.reports import fix as report
from bisect_litert.request import BisectRequest
from bisect_litert.rewrites import catalogue, rank_four
from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.sources import source_of
from bisect_litert.vocabulary import Cause


class Norm(nn.Module):
    """Squares large numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 3000.0
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


class Large(nn.Module):
    """Returns what no fp16 holds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3e5


class Split(nn.Module):
    """Packed heads at rank 5, which the delegate refuses; it keeps all that follows on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.rest = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.reshape(1, 16, 2, 4, 8).permute(2, 0, 3, 1, 4)
        y = torch.tanh(a) + b
        return self.rest(y.transpose(1, 2).reshape(1, 16, 32))


class Model(nn.Module):
    def __init__(self, first: nn.Module, *, hand_out: bool) -> None:
        super().__init__()
        self.blocks, self.hand_out = nn.Sequential(first, Split()), hand_out

    def forward(self, x: torch.Tensor) -> object:
        first = self.blocks[0](x)
        second = self.blocks[1](first * 1e-6 if self.hand_out else first)
        return (first, second) if self.hand_out else second


def fixed(model: nn.Module, folder: Path) -> tuple[RunRecord, engine.Fixed]:
    torch.manual_seed(0)
    loaded = preparation.prepare(model.eval(), (torch.randn(1, 16, 64),), label="model")
    request = BisectRequest(model="model", blocks=("blocks.*",), out=folder / "run")
    found = entrances.bisect_loaded(loaded, request)
    return found, engine.fix(loaded, found, request)


def entry(done: engine.Fixed, cause: Cause) -> CulpritFix:
    (only,) = [c for c in done.record.culprits if c.cause is cause]
    return only


def test_what_the_rewrite_of_refused_ops_uncovers_is_cured_with_it(tmp_path: Path) -> None:
    found, done = fixed(Model(Norm(), hand_out=False), tmp_path)
    assert not found.culprits, "the overflow is on the CPU, where it is none"
    refusal, overflow = entry(done, Cause.REJECTED), entry(done, Cause.OVERFLOW)
    assert (refusal.outcome, overflow.outcome) == (Outcome.FIXED, Outcome.FIXED)
    assert overflow.uncovered
    assert not done.record.diverged_after
    assert not done.last.placement.refusals
    # One rewrite, one entry, whatever the number of ops it is for.
    assert set(refusal.kind.split(", ")) == {r.op for r in found.placement.refusals}
    assert len(found.placement.refusals) > 1
    assert refusal.fix is not None
    assert refusal.fix.detail == "with the cure of what it uncovers: an overflow in blocks.0"
    assert refusal.fix.output_error < 1e-2
    text = report.text(done.record)
    assert text.startswith("2 of 2 culprits fixed; no divergence is left.")
    assert f"rejected ({refusal.kind}): fixed" in text
    assert "in blocks.1, with the cure of what it uncovers: an overflow in blocks.0" in text


def test_what_uncovers_a_fault_that_nothing_cures_is_taken_back(tmp_path: Path) -> None:
    found, done = fixed(Model(Large(), hand_out=True), tmp_path)
    assert not found.culprits
    (refusal,) = done.record.culprits
    assert refusal.outcome is Outcome.UNFIXED
    assert "uncovers an overflow in " in refusal.why_not
    assert "for which nothing worked: " in refusal.why_not
    assert done.steps == ()
    assert done.last is found
    assert not done.record.diverged_after


class Overflowing(nn.Module):
    """What `Split` computes at rank 4 and less, by way of numbers that no fp16 holds."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.rest = original.rest

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(16, 2, 32)
        a, b = heads[:, 0:1].reshape(1, 16, 32), heads[:, 1:2].reshape(1, 16, 32)
        large = a * 1048576.0
        same = (torch.relu(large) - torch.relu(-large)) * 2.0**-20
        return self.rest(torch.tanh(same) + b)  # type: ignore[no-any-return]


def test_a_fault_that_the_rewrite_itself_puts_there_is_not_gone_on_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def propose(_: object) -> list[Replacement]:
        return [Replacement("Overflowing", source_of(Overflowing), {}, (), "too large")]

    sham = Rewrite("sham", "sham", (Cause.REJECTED,), "a", "b", "c", "d", propose)
    monkeypatch.setattr(catalogue, "rewrites", lambda: (sham, rank_four.REWRITE))
    found, done = fixed(Model(nn.Tanh(), hand_out=False), tmp_path)
    assert not found.culprits
    (refusal,) = done.record.culprits
    assert refusal.outcome is Outcome.FIXED
    assert [a.reached for a in refusal.attempts] == [Reached.STILL_WRONG, Reached.PROVEN]
    assert "that it puts there: overflow" in refusal.attempts[0].detail
    assert not done.record.diverged_after
