"""Emulated fp16 on real graphs, against numpy's own rounding of each op's result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from small_models import Converted, CpuRun, run_cpu, run_xnnpack

from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.emulation import SPLIT_LIMIT, Rounding, accumulation_length, allowance, emulate, round_array
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import FP16_UNIT, compare

Once = Callable[[str], Converted]
HALF, SIGNIFICAND = Rounding.HALF, Rounding.SIGNIFICAND


def half(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def run(case: Converted, rounding: Rounding, folder: Path, tame: bool = False) -> tuple[Graph, CpuRun]:
    everything = {t.index for t in case.graph.tensors} if tame else ()
    graph = emulate(case.graph, rounding, everything)
    return graph, run_cpu(graph, case.inputs, folder)


def arithmetic(case: Converted) -> np.ndarray:
    """Each result rounded as it is stored, by numpy."""
    x, y = (half(v) for v in case.inputs.values())
    z = half(half(x * half(np.float32(1.0001))) + y)
    z = half(half(z * y) * half(np.float32(3.1415927)))
    return half(half(z * z) - x)


@pytest.mark.parametrize(("rounding", "tame"), [(HALF, False), (SIGNIFICAND, False), (SIGNIFICAND, True)])
def test_every_stored_number_is_rounded(converted: Once, tmp_path: Path, rounding: Rounding, tame: bool) -> None:
    case = converted("arithmetic")
    _, seen = run(case, rounding, tmp_path, tame)
    np.testing.assert_array_equal(seen.outputs["output_0"], arithmetic(case))
    assert not np.array_equal(seen.outputs["output_0"], run_cpu(case.graph, case.inputs, tmp_path).outputs["output_0"])


@pytest.mark.parametrize("rounding", [HALF, SIGNIFICAND])
@pytest.mark.parametrize("name", ["blocks", "convolutions", "sums", "masked"])
def test_names_and_shapes_of_outputs_stay(converted: Once, tmp_path: Path, name: str, rounding: Rounding) -> None:
    case = converted(name)
    before = [op.type for op in case.graph.ops]
    _, seen = run(case, rounding, tmp_path)
    bare = run_cpu(case.graph, case.inputs, tmp_path)
    assert {n: v.shape for n, v in seen.outputs.items()} == {n: v.shape for n, v in bare.outputs.items()}
    for value in seen.outputs.values():
        finite = value[np.isfinite(value)]
        np.testing.assert_array_equal(finite, round_array(finite, rounding))  # each output is itself a rounded number
    assert [op.type for op in case.graph.ops] == before


@pytest.mark.parametrize("rounding", [HALF, SIGNIFICAND])
def test_weights_are_rounded_in_a_copy(converted: Once, rounding: Rounding) -> None:
    case = converted("blocks")
    weight = case.graph.ops[0].inputs[1]
    original = case.graph.constant(weight)
    assert original is not None
    kept = original.copy()
    graph = emulate(case.graph, rounding)
    matrix = next(op for op in graph.ops if op.type == "FULLY_CONNECTED")
    rounded = graph.constant(matrix.inputs[1])
    assert rounded is not None
    np.testing.assert_array_equal(rounded, half(kept))
    assert not np.array_equal(rounded, kept)
    np.testing.assert_array_equal(case.graph.constant(weight), kept)


def test_inputs_are_rounded(converted: Once, tmp_path: Path) -> None:
    case = converted("arithmetic")
    graph, seen = run(case, HALF, tmp_path)
    first = next(op for op in graph.ops if op.type == "MUL")
    np.testing.assert_array_equal(seen.tensors[first.inputs[0]], half(case.inputs["args_0"]))


def test_both_roundings_agree_inside_the_range(converted: Once, tmp_path: Path) -> None:
    for name in ("blocks", "convolutions", "sums"):
        case = converted(name)
        a, b = run(case, HALF, tmp_path)[1].outputs, run(case, SIGNIFICAND, tmp_path)[1].outputs
        for output in a:
            # Numbers below 2**-14 have fewer bits in fp16; what follows from them may differ in the last one.
            assert compare(reference=a[output], target=b[output]).relative_l2 < FP16_UNIT / 4


def test_outside_the_range_only_half_breaks(converted: Once, tmp_path: Path) -> None:
    case = converted("masked")
    x = case.inputs["args_0"]
    a, b = run(case, HALF, tmp_path)[1].outputs, run(case, SIGNIFICAND, tmp_path)[1].outputs
    assert np.isnan(a["output_1"]).sum() + np.isinf(a["output_1"]).sum() + (a["output_1"] == 0).sum() == x.size
    assert compare(reference=x, target=b["output_1"]).relative_l2 < 4 * FP16_UNIT
    bare = run_cpu(case.graph, case.inputs, tmp_path)
    for values in (a, b):  # a mask of -inf passes through, and no NaN comes of it
        assert compare(reference=bare.outputs["output_0"], target=values["output_0"]).relative_l2 < 0.02
        assert (values["output_0"][:, 0, 1:] == 0).all()
    _, seen = run(case, SIGNIFICAND, tmp_path)
    assert any(np.isneginf(v).any() for v in seen.tensors.values() if v.dtype == np.float32)


def test_a_variance_that_overflows_does_so_in_half_only(converted: Once, tmp_path: Path) -> None:
    case = converted("overflowing")
    reference = case.module(*case.args).numpy()
    assert compare(reference=reference, target=run(case, HALF, tmp_path)[1].outputs["output_0"]).relative_l2 > 0.05
    assert (
        compare(reference=reference, target=run(case, SIGNIFICAND, tmp_path)[1].outputs["output_0"]).relative_l2 < 2e-3
    )


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(FLOATS, min_size=1, max_size=30))
@hypothesis_settings(max_examples=200, deadline=None)
def test_rounding_an_array(values: list[float]) -> None:
    x = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(round_array(x, HALF), x.astype(np.float16).astype(np.float32))
    y = round_array(x, SIGNIFICAND)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    normal = np.isfinite(x) & (np.abs(x) < 6e4) & (np.abs(x) >= 2.0**-14)
    np.testing.assert_array_equal(y[normal], x[normal].astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(round_array(y, SIGNIFICAND), y)
    wide = np.isfinite(x) & (np.abs(x) < 3e38) & (np.abs(x) > 1e-37)
    assert (np.abs(y[wide].astype(np.float64) - x[wide]) <= FP16_UNIT * np.abs(x[wide].astype(np.float64))).all()


@pytest.mark.parametrize("tame", [False, True])
def test_splitting_in_the_graph_is_rounding_to_eleven_bits(converted: Once, tmp_path: Path, tame: bool) -> None:
    # A graph that hands its input on, so that all there is is the rounding; on XNNPACK, as the product runs it.
    bare = Editor(converted("arithmetic").graph)
    bare.drop_outputs()
    bare.add_output("x", bare.subgraph.inputs[0])
    bare.prune()
    graph = emulate(bare.graph(), SIGNIFICAND, {t.index for t in bare.graph().tensors} if tame else ())
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((4, 8)) * 10.0 ** rng.uniform(-30, 30 if tame else 37, (4, 8))).astype(np.float32)
    x[0] = np.float32(1) + np.arange(8, dtype=np.float32) * np.float32(2.0**-11)  # ties
    if not tame:
        x[1, :4] = (np.inf, -np.inf, np.nan, -SPLIT_LIMIT)
    seen = run_xnnpack(graph, {"args_0": x}, tmp_path)["x"]
    small = np.abs(x) < SPLIT_LIMIT / 10
    np.testing.assert_array_equal(seen[small], round_array(x, SIGNIFICAND)[small])
    # What is too large to split passes through as good as unrounded.
    np.testing.assert_allclose(seen[~small], x[~small], rtol=FP16_UNIT)


def test_how_many_terms_an_op_adds(converted: Once) -> None:
    lengths = {op.type: accumulation_length(converted("sums").graph, op) for op in converted("sums").graph.ops}
    assert lengths == {"SUM": 5, "MEAN": 12, "CUMSUM": 5, "FULLY_CONNECTED": 12, "BATCH_MATMUL": 12}
    convolutions = converted("convolutions").graph
    assert [accumulation_length(convolutions, op) for op in convolutions.ops] == [1, 3 * 9, 5 * 9, 1]


def test_allowance_is_that_of_the_longest_sum(converted: Once) -> None:
    graph = converted("convolutions").graph
    assert allowance(graph, graph.ops) == pytest.approx(np.sqrt(1 + 45 / 2))
    assert allowance(graph, graph.ops[:1]) == 1.0
    assert allowance(graph, ()) == 1.0


def test_what_the_allowance_grants_is_what_sequential_fp16_sums_cost() -> None:
    """The derivation in `allowance`, measured: 256 terms of random sign, added one after the other in fp16."""
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((2000, 256)).astype(np.float16)
    total = np.zeros(2000, np.float16)
    for k in range(256):
        total = total + terms[:, k]
    exact = terms.astype(np.float64).sum(1)
    error = float(np.linalg.norm(total - exact) / np.linalg.norm(exact))
    stored = float(np.linalg.norm(exact.astype(np.float16) - exact) / np.linalg.norm(exact))
    assert 0.5 < error / (stored * np.sqrt(1 + 256 / 2)) < 2
