"""Where a block leaves the range: on converted modules with the emulated run's own values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import Converted, run_cpu

from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.search import ranges
from bisect_litert.search.ranges import accumulated_peak, first_fault

Once = Callable[[str], Converted]


def both(case: Converted, folder: Path, scale: float = 1.0) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Reference values and emulated ones, rounded, by the original graph's indices."""
    inputs = {name: np.asarray(value * scale, np.float32) for name, value in case.inputs.items()}
    graph = emulate(case.graph, Rounding.HALF)
    emulated = run_cpu(graph, inputs, folder).tensors
    rounded = {t.name: t.index for t in graph.tensors}
    half = {
        t.index: emulated[rounded[f"rounded_{t.index}"]] for t in case.graph.tensors if f"rounded_{t.index}" in rounded
    }
    return run_cpu(case.graph, inputs, folder).tensors, half


def test_the_square_is_where_a_layer_norm_overflows(converted: Once, tmp_path: Path) -> None:
    case = converted("overflowing")
    reference, half = both(case, tmp_path)
    fault = first_fault(case.graph, case.graph.ops, reference, half)
    assert fault is not None
    assert (fault.kind, fault.op.type, fault.op.inputs[0] == fault.op.inputs[1]) == ("overflow", "MUL", True)
    square = reference[fault.op.outputs[0]]
    assert fault.reference_peak == square.max()
    assert fault.lost == np.count_nonzero(square > 65520)  # 65504 and half a unit round to infinity
    assert "65504" in fault.sentence()
    assert "MUL" in fault.sentence()


def test_a_mask_that_a_softmax_takes_is_no_fault_whoever_else_reads_it(converted: Once, tmp_path: Path) -> None:
    case = converted("shared mask")
    reference, half = both(case, tmp_path)
    masked = next(op for op in case.graph.ops if op.type.startswith("SELECT"))
    assert np.isinf(half[masked.outputs[0]]).any()
    softmaxes = [op.index for op in case.graph.ops if op.type == "SOFTMAX"]
    assert masked.index < softmaxes[0]
    fault = first_fault(case.graph, case.graph.ops, reference, half)
    assert fault is not None
    assert fault.kind == "overflow"
    assert fault.op.index > softmaxes[0]
    second = case.graph.inside([case.graph.outputs[0].tensor], {case.graph.ops[softmaxes[0]].outputs[0]})
    assert masked.index in [op.index for op in second]
    fault = first_fault(case.graph, second, reference, half)
    assert fault is not None
    assert fault.op.index > softmaxes[0]
    first = case.graph.inside([case.graph.ops[softmaxes[0]].outputs[0]], set())
    assert first_fault(case.graph, first, reference, half) is None


def test_in_range_there_is_no_fault(converted: Once, tmp_path: Path) -> None:
    case = converted("overflowing")
    assert first_fault(case.graph, case.graph.ops, *both(case, tmp_path, scale=0.01)) is None
    case = converted("blocks")
    assert first_fault(case.graph, case.graph.ops, *both(case, tmp_path)) is None


def test_what_became_zero_is_the_origin_of_what_is_divided_by_it(converted: Once, tmp_path: Path) -> None:
    case = converted("flushed")
    reference, half = both(case, tmp_path)
    assert np.isinf(half[case.graph.outputs[0].tensor]).all()
    fault = first_fault(case.graph, case.graph.ops, reference, half)
    assert fault is not None
    assert (fault.kind, fault.op.index) == ("underflow", 1)  # small * small
    assert "6e-8" in fault.sentence()


def test_a_small_number_among_large_ones_may_become_zero(converted: Once, tmp_path: Path) -> None:
    case = converted("blocks")
    reference, half = both(case, tmp_path)
    t = case.graph.ops[2].outputs[0]
    reference[t] = reference[t].copy()
    reference[t][0, 0] = 1e-9
    half[t] = half[t].copy()
    half[t][0, 0] = 0
    assert first_fault(case.graph, case.graph.ops, reference, half) is None


def test_only_the_given_ops_are_looked_at(converted: Once, tmp_path: Path) -> None:
    case = converted("overflowing")
    reference, half = both(case, tmp_path)
    before = [op for op in case.graph.ops if op.index < 2]
    assert first_fault(case.graph, before, reference, half) is None
    assert first_fault(case.graph, case.graph.ops, reference, {}) is None


@pytest.mark.parametrize("kind", ["SUM", "MEAN", "CUMSUM", "FULLY_CONNECTED", "BATCH_MATMUL"])
def test_what_an_op_adds_up(converted: Once, tmp_path: Path, kind: str) -> None:
    case = converted("sums")
    x = np.abs(case.inputs["args_0"]).astype(np.float64)
    weight = np.abs(case.module.fc.weight.detach().numpy()).astype(np.float64)
    expected = {
        "SUM": x.sum(1).max(),
        "MEAN": x.sum(2).max(),
        "CUMSUM": x.sum(1).max(),
        "FULLY_CONNECTED": (x @ weight.T).max(),
        "BATCH_MATMUL": (x @ x.transpose(0, 2, 1)).max(),
    }[kind]
    ops = [op for op in case.graph.ops if op.type == kind]
    peak, op = accumulated_peak(case.graph, ops, run_cpu(case.graph, case.inputs, tmp_path).tensors)
    assert op == ops[0]
    assert peak == pytest.approx(expected, rel=1e-5)


def test_the_largest_of_several_is_named(converted: Once, tmp_path: Path) -> None:
    case = converted("sums")
    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    peaks = {op.type: accumulated_peak(case.graph, [op], values)[0] for op in case.graph.ops}
    peak, op = accumulated_peak(case.graph, case.graph.ops, values)
    assert op is not None
    assert (peak, op.type) == (max(peaks.values()), max(peaks, key=lambda k: peaks[k]))


def test_convolutions_are_bounded(converted: Once, tmp_path: Path) -> None:
    import torch

    case = converted("convolutions")
    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    peak, op = accumulated_peak(case.graph, case.graph.ops[1:2], values)
    with torch.no_grad():
        conv = case.module.c0
        exact = torch.nn.functional.conv2d(case.args[0].abs(), conv.weight.abs(), padding=1).max().item()
        bound = case.args[0].abs().max().item() * conv.weight.abs().sum((1, 2, 3)).max().item()
    assert op is not None
    assert exact <= peak
    assert peak == pytest.approx(bound, rel=1e-5)


def test_nothing_that_adds_up(converted: Once, tmp_path: Path) -> None:
    case = converted("arithmetic")
    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    assert accumulated_peak(case.graph, case.graph.ops, values) == (0.0, None)
    assert accumulated_peak(case.graph, converted("sums").graph.ops, {}) == (0.0, None)


def test_infinities_add_nothing(converted: Once, tmp_path: Path) -> None:
    case = converted("sums")
    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    x = case.graph.inputs[0].tensor
    values[x] = values[x].copy()
    values[x][0, 0, 0] = -np.inf
    peak, _ = accumulated_peak(case.graph, case.graph.ops[:1], values)
    assert peak == pytest.approx(np.abs(np.where(np.isfinite(values[x]), values[x], 0)).sum(1).max())


def test_values_that_are_all_tiny_lose_digits_and_not_themselves(converted: Once, tmp_path: Path) -> None:
    case = converted("blocks")
    reference, half = both(case, tmp_path)
    t = case.graph.ops[2].outputs[0]
    scale = 3e-6 / np.abs(reference[t]).max()
    reference[t] = reference[t] * np.float32(scale)
    half[t] = reference[t].astype(np.float16).astype(np.float32)
    fault = first_fault(case.graph, case.graph.ops, reference, half)
    assert fault is not None
    assert (fault.kind, fault.op.index, fault.gradual) == ("underflow", 2, True)
    assert "fewer digits" in fault.sentence()


def test_what_another_block_lost_is_no_fault_of_the_ops_behind_it(converted: Once, tmp_path: Path) -> None:
    case = converted("blocks")
    reference, half = both(case, tmp_path)
    at = len(case.graph.ops) // 2
    for op in case.graph.ops[at:]:
        half |= {t: np.full_like(half[t], np.nan) for t in op.outputs}
    lost = first_fault(case.graph, case.graph.ops[at:], reference, half)
    assert lost is not None
    assert lost.op.index == at
    assert first_fault(case.graph, case.graph.ops[at + 1 :], reference, half) is None


def test_rows_that_are_right_do_not_outweigh_those_that_a_root_made_zero() -> None:
    lost = np.array([[True], [False], [False]])
    right = np.array([[5e-4], [1.0], [2.0]], np.float32)
    assert not ranges._back_in_line(right, np.where(lost, 0, right), lost)
    assert ranges._back_in_line(right, right * 1.0001, lost)
    mask = np.array([True, False, False, False])
    softmax = np.array([[1e-30, 0.5, 0.2, 0.3]] * 2, np.float32)
    assert ranges._back_in_line(softmax, np.where(mask, 0, softmax), mask)
    assert ranges._back_in_line(right.T, right.T, np.array([True, False]))  # of another size: nothing to look at
