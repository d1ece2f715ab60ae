"""Faults planted behind blocks of random graphs, the process boundary faked: exactly they are named, hidden or not.

The graph is edited, not the results, so that a fault is there in every run of every graph made from it: tapped through
copies, raw, untapped, healed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_gpu import Fault, FaultyGpu
from small_models import numbers
from torch import nn

from bisect_litert import bisect
from bisect_litert.devices import machines
from bisect_litert.graphs import stored_conversion
from bisect_litert.graphs.graph import Graph
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark

WIDTH, BLOCKS = 16, 6


class Node(nn.Module):
    """A block whose last op is a TANH, so that what it hands on is known by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.fc(sum(x[1:], x[0])))


class Dag(nn.Module):
    """Blocks that read any of those before them; those that nobody reads are outputs, in every other graph doubled."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.factor = 2 if seed % 2 == 0 else 1
        self.parents: list[list[int]] = [[]]
        for k in range(1, BLOCKS):
            self.parents.append(sorted(draw.sample(range(k), min(k, draw.randint(1, 2)))))
        for k in range(BLOCKS):
            self.add_module(f"n{k}", Node())

    @property
    def ends(self) -> list[int]:
        return [k for k in range(BLOCKS) if not any(k in p for p in self.parents)]

    def forward(self, x: torch.Tensor) -> Any:
        values: list[torch.Tensor] = []
        for k, before in enumerate(self.parents):
            values.append(getattr(self, f"n{k}")(*([values[p] for p in before] or [x])))
        return tuple(values[k] * self.factor if self.factor > 1 else values[k] for k in self.ends)


@lru_cache
def dag(seed: int) -> Dag:
    torch.manual_seed(seed)
    return Dag(seed).eval()


@pytest.fixture(scope="session")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {}


@pytest.fixture
def planted(
    monkeypatch: pytest.MonkeyPatch, conversions: dict[int, Path], tmp_path_factory: Any
) -> Callable[..., RunRecord]:
    """Returns a function that bisects a graph with faults, converting each graph once a session."""
    convert = stored_conversion.convert

    def once(module: nn.Module, args: Any, kwargs: Any, path: Path, log: Path) -> Graph:
        seed = next(s for s in range(10) if module is dag(s))
        if seed not in conversions:
            conversions[seed] = tmp_path_factory.mktemp("dag") / "model.tflite"
            convert(module, args, kwargs, conversions[seed], log)
        return Graph.read(conversions[seed])

    def run(seed: int, *faults: Fault, most_taps: int = 10**6, heeds: bool = True, **options: Any) -> RunRecord:
        kind = {"faults": faults, "most_taps": most_taps, "switches": heeds}
        monkeypatch.setattr(stored_conversion, "convert", once)
        monkeypatch.setattr(machines, "Runner", type("Planted", (FaultyGpu,), kind))
        return bisect(dag(seed), numbers(8, WIDTH, seed=9), blocks="*", cache=False, **options)

    return run


def named(record: RunRecord) -> list[tuple[str, Cause]]:
    return [(c.block, c.cause) for c in record.culprits]


def test_a_healthy_graph_is_left_alone(planted: Callable[..., RunRecord]) -> None:
    record = planted(0)
    assert record.target == "gpu"
    assert (record.verdict.cause, record.verdict.diverged, record.culprits) == (Cause.NONE, False, ())
    assert {b.mark for b in record.blocks} == {Mark.OK}
    assert [r.status for r in record.runs if r.name == "gpu-fp32"] == ["not needed"]


@pytest.mark.parametrize(("seed", "k"), [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4), (0, 5), (1, 5)])
def test_a_fault_in_any_block_is_found_there(planted: Callable[..., RunRecord], seed: int, k: int) -> None:
    kind = ["noise", "nan", "zeros", "scale", "swap"][(k + seed) % 5]
    record = planted(seed, Fault(f"n{k}", kind))
    assert named(record) == [(f"n{k}", Cause.WRONG_KERNEL)], (kind, record.verdict.summary)
    assert record.verdict.diverged
    assert record.verdict.cause is Cause.WRONG_KERNEL
    assert not record.culprits[0].hidden
    marks = {b.name: b.mark for b in record.blocks}
    assert marks[f"n{k}"] is Mark.CULPRIT
    assert [name for name, mark in marks.items() if mark is Mark.CULPRIT] == [f"n{k}"]


@pytest.mark.parametrize("kind", ["noise", "zeros"])
def test_a_fault_that_fp32_does_not_show_is_no_wrong_kernel(planted: Callable[..., RunRecord], kind: str) -> None:
    record = planted(0, Fault("n2", kind, fp32=False))
    assert named(record) == [("n2", Cause.PRECISION_LOSS)]


@pytest.mark.parametrize(("first", "second"), [("n0", "n5"), ("n4", "n5"), ("n3", "n4")])
def test_two_faults_are_both_found(planted: Callable[..., RunRecord], first: str, second: str) -> None:
    record = planted(1, Fault(first, "noise"), Fault(second, "scale"))
    assert named(record) == [(first, Cause.WRONG_KERNEL), (second, Cause.WRONG_KERNEL)]
    # What cannot be healed, since nothing but an output follows, is no reason to say that the rest is off.
    assert "still off" not in record.verdict.summary


def test_a_fault_behind_zeros_is_found_once_they_are_healed(planted: Callable[..., RunRecord]) -> None:
    # n0 hands on zeros; tanh(fc(0)) times 6 is still wrong, but so little is left of it that only healing tells.
    record = planted(0, Fault("n0", "nan"), Fault("n4", "swap"))
    assert {name for name, _ in named(record)} == {"n0", "n4"}
    assert record.culprits[0].block == "n0"


def test_the_culprits_op_is_proved_by_keeping_it_off_the_gpu(planted: Callable[..., RunRecord]) -> None:
    record = planted(0, Fault("n1", "noise"))
    (culprit,) = record.culprits
    assert "TANH" in " ".join(culprit.evidence)
    assert any("off the GPU" in sentence and "right" in sentence for sentence in culprit.proof)
