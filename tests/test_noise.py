"""Tensors of which fp32 holds no digit: honest devices are in line there, wrong ones are not."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert import bisect
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import FP16_UNIT, compare, compare_by_scale
from bisect_litert.measuring.noise import Noise, complete, find_noise, sentences
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause

TERMS = np.random.default_rng(0).standard_normal((12, 48))
EXACT = (TERMS - TERMS.mean(-1, keepdims=True)).mean(-1)
CENTRED = (TERMS - TERMS.mean(-1, keepdims=True)).astype(np.float32)


def mean(dtype: Any) -> np.ndarray:
    return CENTRED.astype(dtype).astype(np.float32).mean(-1, dtype=np.float32)


def test_what_fp32_holds_no_digit_of_is_noise() -> None:
    exact = {"gone": EXACT, "value": TERMS, "half": np.full(4, 1.0)}
    single = {"gone": mean(np.float32), "value": TERMS.astype(np.float32), "half": np.full(4, 0.5, np.float32)}
    found = find_noise(exact, single)
    assert list(found) == ["gone"]
    # fp32's rounding tells the terms' size: about 1 each, to the order of magnitude.
    assert 0.1 < found["gone"].terms / np.sqrt(12) < 10
    assert found["gone"].exact < 1e-15 < found["gone"].single < 1e-6


def test_a_chaotic_result_is_as_large_as_the_exact_one_and_is_no_noise() -> None:
    one, other = np.random.default_rng(1).uniform(-1, 1, (2, 5000))
    assert not find_noise({"y": one}, {"y": other.astype(np.float32)})
    assert not find_noise({"y": one}, {"y": -one.astype(np.float32)})


def test_errors_at_noise_are_relative_to_the_terms() -> None:
    reference, honest = mean(np.float32), mean(np.float16)
    terms = find_noise({"y": EXACT}, {"y": reference})["y"].terms
    assert compare(reference=reference, target=honest).relative_l2 > 100
    held = compare_by_scale(reference=reference, target=honest, terms=terms)
    assert held.relative_l2 < 2 * FP16_UNIT
    assert held.snr_db == pytest.approx(-20 * np.log10(held.relative_l2))
    assert isnan(held.correlation)
    assert isnan(held.scale)
    assert held.terms == terms
    zeros = compare(reference=reference, target=0 * reference, terms=terms)
    assert zeros.new_zeros == 0
    assert zeros.finite_agreement


@pytest.mark.parametrize("wrong", [0.5, 1000.0])
def test_a_target_that_is_far_off_beside_the_terms_is_out_of_line(wrong: float) -> None:
    reference = mean(np.float32)
    terms = find_noise({"y": EXACT}, {"y": reference})["y"].terms
    assert compare(reference=reference, target=reference + wrong, terms=terms).relative_l2 > 0.05 * wrong
    lost = compare(reference=reference, target=np.full_like(reference, np.nan), terms=terms)
    assert not lost.finite_agreement


def test_a_value_larger_than_the_terms_is_compared_by_itself() -> None:
    assert compare(reference=np.ones(4), target=np.full(4, 1.5), terms=0.1).relative_l2 == pytest.approx(0.5)


def test_terms_are_read_off_the_addition_when_no_rounding_shows_them(converted: Any) -> None:
    """As in a single number, in which fp32, fp64 and fp16 may all give the same zero."""
    graph: Graph = converted("blocks").graph
    end = next(op for op in graph.ops if op.type == "ADD")
    size = graph.tensors[end.outputs[0]].size
    values = {end.inputs[0]: np.full(size, 6.0, np.float32), end.inputs[1]: np.full(size, -6.0, np.float32)}
    zero = {"y": np.zeros(size, np.float32)}
    noise = find_noise({"y": np.zeros(size)}, zero)
    found = complete(noise, zero, zero, {"y": end.outputs[0]}, graph, values)
    assert found["y"].terms == pytest.approx(6 * np.sqrt(size))
    # A zero that nothing cancels to is zero on every device.
    assert not complete(noise, zero, zero, {"y": end.inputs[1]}, graph, values)
    assert not complete(noise, zero, zero, {"y": end.outputs[0]}, graph, {t: 0 * v for t, v in values.items()})


def test_sentences_name_both_values_and_end_somewhere() -> None:
    noise = {name: Noise(3e-9, 1e-7, 1.0) for name in ("b", "output")}
    (said,) = sentences(noise)
    assert said.startswith("b (and so output) is fp32 noise: fp64 gives 3e-09 where fp32 gives 1e-07.")
    many = {f"b{i}": Noise(i * 1e-9, 1e-7, 1.0) for i in range(9)}
    assert sentences(many)[5:] == ["So are 4 more tensors."]


class Branch(nn.Module):
    """x + k - x - c, where k is c as a constant: nothing, unless the GPU reads the constant's first row only."""

    def __init__(self, constant: torch.Tensor, stored: bool) -> None:
        super().__init__()
        self.register_buffer("constant", constant)
        self.stored = stored

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x, -1) * (self.constant if self.stored else c)).sum(-1) - c[:, 0]


class Cancels(nn.Module):
    def __init__(self, stored: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(48, 48)
        self.given = torch.linspace(0.5, 2, 12)[:, None].repeat(1, 48)
        self.noise = Branch(self.given.clone(), stored)

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.trunk(x))
        return h * 2, self.noise(h, c)


def run(*, stored: bool) -> RunRecord:
    model = Cancels(stored).eval()
    return bisect(model, (torch.randn(12, 48, generator=torch.Generator().manual_seed(0)), model.given))


def test_an_output_of_noise_beside_a_real_one_is_no_divergence() -> None:
    record = run(stored=False)
    assert record.verdict.cause is Cause.NONE, record.verdict
    real, noise = (output.comparison for output in record.outputs)
    assert real is not None
    assert noise is not None
    assert real.terms == 0
    assert real.relative_l2 > 1e-5  # judged as ever
    assert noise.terms > 1
    assert noise.max_abs_error > 100 * noise.reference_peak  # which nothing but the terms puts in line
    assert any("is fp32 noise: fp64 gives" in note for note in record.verdict.notes)


def test_a_wrong_kernel_before_the_terms_cancel_is_found() -> None:
    record = run(stored=True)
    assert [(c.block, c.cause) for c in record.culprits] == [("noise", Cause.WRONG_KERNEL)]
    assert record.culprits[0].proof[0].startswith("With only op")
