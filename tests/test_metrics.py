"""Comparisons against values worked out by hand, and properties that hold for any pair of tensors."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from math import inf, isnan, log10, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16

from bisect_litert.block_record import Comparison
from bisect_litert.measuring import metrics, pieces
from bisect_litert.measuring.metrics import FP16_UNIT, compare, compare_by_scale, true_infinities

EDGES = [0.0, -0.0, 1.0, -3.0, 65503.0, 65504.0, -65504.0, 1e6, 1e-30, inf, -inf, nan]
VALUES = st.one_of(st.sampled_from(EDGES), st.integers(-100, 100).map(float))
PAIRS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40)


def of(reference: Any, target: Any, dtype: Any = np.float32) -> Comparison:
    return compare(reference=np.asarray(reference, dtype), target=np.asarray(target, dtype))


def same(a: Comparison, b: Comparison, rel: float = 1e-9) -> bool:
    return asdict(a) == pytest.approx(asdict(b), rel=rel, abs=1e-12, nan_ok=True)


def columns(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, np.float64)
    return table[:, 0], table[:, 1]


def test_by_hand() -> None:
    c = of([3.0, 4.0, 0.0, 0.0], [3.0, 4.5, 0.0, -1.0])
    assert c.elements == 4
    assert c.relative_l2 == pytest.approx(sqrt(0.25 + 1.0) / 5)
    assert c.snr_db == pytest.approx(10 * log10(25 / 1.25))
    assert c.scale == pytest.approx((9 + 18) / 25)
    assert c.max_abs_error == 1.0
    assert (c.reference_peak, c.target_peak) == (4.0, 4.5)
    assert c.correlation == pytest.approx(np.corrcoef([3, 4, 0, 0], [3, 4.5, 0, -1])[0, 1])
    assert (c.zeros, c.new_zeros, c.nonfinite, c.new_nonfinite, c.saturated, c.unwritten) == (1, 0, 0, 0, 0, 0)
    assert c.finite_agreement


def test_equal_tensors() -> None:
    c = of([1.0, -2.0], [1.0, -2.0])
    assert (c.relative_l2, c.snr_db, c.scale, c.max_abs_error) == (0.0, inf, 1.0, 0.0)
    assert c.correlation == pytest.approx(1.0)


def test_the_unit_is_what_rounding_to_fp16_costs_at_most() -> None:
    values = np.random.default_rng(0).uniform(1, 2, 100_000).astype(np.float32)
    error = np.abs(values.astype(np.float16).astype(np.float64) - values) / values
    assert 0.99 * FP16_UNIT < error.max() <= FP16_UNIT


def test_a_nan_is_counted_and_leaves_the_rest_as_it_is() -> None:
    c = of([1.0, 2.0, 3.0, 4.0], [1.0, nan, 3.0, 5.0])
    assert (c.nonfinite, c.new_nonfinite) == (1, 1)
    assert c.relative_l2 == pytest.approx(1 / sqrt(1 + 9 + 16))
    assert not c.finite_agreement


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nothing_finite_left_is_no_number(bad: float) -> None:
    c = of([1.0, 2.0], [bad, bad])
    assert isnan(c.relative_l2)
    assert isnan(c.correlation)
    assert isnan(c.snr_db)
    assert isnan(c.max_abs_error)
    assert c.new_nonfinite == 2
    assert c.saturated == (0 if isnan(bad) else 2)


@pytest.mark.parametrize(
    ("reference", "target", "new"),
    [
        (inf, inf, 0),
        (-inf, -inf, 0),
        (nan, nan, 0),
        (inf, 7e4, 0),
        (inf, nan, 1),
        (inf, -inf, 1),
        (1.0, inf, 1),
        (1.0, nan, 1),
        (1.0, 2.0, 0),
    ],
)
def test_which_nonfinite_values_are_new(reference: float, target: float, new: int) -> None:
    c = of([1.0, reference], [1.0, target])
    assert c.new_nonfinite == new
    assert c.finite_agreement == (new == 0)
    assert c.reference_nonfinite == int(not np.isfinite(reference))


def test_an_unwritten_element_is_no_agreement() -> None:
    one = np.ones(3, np.float32)
    assert not compare(reference=one, target=one, unwritten=1).finite_agreement


def test_an_all_zero_reference() -> None:
    assert of([0.0, 0.0], [0.0, 0.0]).relative_l2 == 0.0
    c = of([0.0, 0.0], [0.0, 1e-9])
    assert c.relative_l2 == inf
    assert c.snr_db == -inf
    assert isnan(c.scale)
    assert isnan(c.correlation)


def test_an_all_zero_target() -> None:
    c = of([1.0, 2.0, 0.01], [0.0, 0.0, 0.0])
    assert c.relative_l2 == 1.0
    assert c.scale == 0.0
    assert isnan(c.correlation)
    # 0.01 is below a tenth of the root mean square: its loss is no finding.
    assert (c.zeros, c.new_zeros) == (3, 2)


@pytest.mark.parametrize(
    ("reference", "target"), [([5, 5, 5], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([0.1] * 3, [0.1] * 3)]
)
def test_correlation_with_a_constant_is_undefined(reference: list[float], target: list[float]) -> None:
    assert isnan(of(reference, target).correlation)


def test_correlation_survives_a_large_mean() -> None:
    rng = np.random.default_rng(1)
    noise, other = rng.standard_normal((2, 1000))
    reference, target = 1e8 + noise, -1e8 + noise + 0.1 * other
    c = of(reference, target, np.float64)
    assert c.correlation == pytest.approx(np.corrcoef(reference, target)[0, 1], abs=1e-6)
    assert 0.99 < c.correlation < 0.999


@pytest.mark.parametrize("first", [0.0, 5.0])
def test_correlation_survives_a_mean_that_only_later_pieces_have(first: float) -> None:
    rng = np.random.default_rng(1)
    noise, other = rng.standard_normal((2, 40 * pieces.PIECE)).astype(np.float32)
    noise[: pieces.PIECE] += first
    noise[pieces.PIECE :] += 1e4
    target = noise + 50 * other
    assert of(noise, target).correlation == pytest.approx(np.corrcoef(noise, target)[0, 1], abs=1e-9)


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 20000, 32768])
def test_products_of_any_length(size: int) -> None:
    one, other = np.random.default_rng(0).standard_normal((2, size))
    assert pieces.dot(one, other) == pytest.approx(sum(one * other), abs=1e-9)


def test_correlation_does_not_see_what_scale_does() -> None:
    reference = np.random.default_rng(2).standard_normal(100)
    c = of(reference, 6 * reference)
    assert c.correlation == pytest.approx(1.0)
    assert c.scale == pytest.approx(6.0)
    assert c.relative_l2 == pytest.approx(5.0, rel=1e-6)


def test_saturated() -> None:
    c = of([1e5, 6e4, -6e4, 6e4, 7e4], [65504, 65504, -inf, 6e4, inf])
    assert c.saturated == 2
    assert c.target_peak == 65504.0


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int8, np.uint8, np.float16])
def test_other_dtypes(dtype: Any) -> None:
    c = of([3, 4, 0], [3, 0, 0], dtype)
    assert c.relative_l2 == pytest.approx(4 / 5)
    assert (c.zeros, c.new_zeros) == (2, 1)


def test_small_integers_do_not_wrap_around() -> None:
    assert of([127, 0], [-128, 0], np.int8).max_abs_error == 255.0


def test_booleans() -> None:
    c = of([True, True, False, False], [True, False, False, True], np.bool_)
    assert c.relative_l2 == pytest.approx(1.0)
    assert c.max_abs_error == 1.0


def test_shapes_need_the_same_size_only() -> None:
    x = np.arange(6, dtype=np.float32)
    assert compare(reference=x.reshape(2, 3), target=x.reshape(6, 1)).relative_l2 == 0.0
    assert compare(reference=np.float32(2).reshape(()), target=np.array([2], np.float32)).relative_l2 == 0.0
    with pytest.raises(ValueError, match="cannot compare"):
        compare(reference=x, target=x[:5])


def test_empty_tensors() -> None:
    c = of([], [])
    assert c.elements == 0
    assert isnan(c.relative_l2)
    assert c.finite_agreement


@given(PAIRS, st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_chunks_make_no_difference(pairs: list[tuple[float, float]], chunk: int) -> None:
    reference, target = columns(pairs)
    whole = compare(reference=reference, target=target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "PIECE", chunk)
        for function in (pieces.pairs, pieces.flat_pieces):
            patch.setattr(function, "__defaults__", (chunk,))
        assert same(compare(reference=reference, target=target), whole)


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(-100, 100)), min_size=1, max_size=40), st.randoms())
@settings(max_examples=100, deadline=None)
def test_order_makes_no_difference(pairs: list[tuple[float, float]], random: Any) -> None:
    mixed = list(pairs)
    random.shuffle(mixed)
    assert same(of(*columns(pairs)), of(*columns(mixed)))


@given(PAIRS, st.integers(-20, 20))
@settings(max_examples=100, deadline=None)
def test_scaling_both_leaves_the_relative_measures(pairs: list[tuple[float, float]], power: int) -> None:
    reference, target = columns(pairs)
    a = compare(reference=reference, target=target)
    b = compare(reference=reference * 2.0**power, target=target * 2.0**power)
    for name in ("relative_l2", "correlation", "snr_db", "scale"):
        assert getattr(b, name) == pytest.approx(getattr(a, name), nan_ok=True), name
    assert (b.nonfinite, b.new_nonfinite, b.zeros, b.new_zeros) == (a.nonfinite, a.new_nonfinite, a.zeros, a.new_zeros)


@given(PAIRS)
@settings(max_examples=150, deadline=None)
def test_what_is_not_finite_is_counted_and_never_replaced(pairs: list[tuple[float, float]]) -> None:
    reference, target = columns(pairs)
    c = compare(reference=reference, target=target)
    finite = np.isfinite(reference) & np.isfinite(target)
    rest = compare(reference=reference[finite], target=target[finite])
    assert c.nonfinite == np.count_nonzero(~np.isfinite(target))
    assert c.new_nonfinite >= np.count_nonzero(~np.isfinite(target) & np.isfinite(reference))
    assert c.max_abs_error == pytest.approx(rest.max_abs_error, nan_ok=True)
    # A reference that is finite where the target is not still counts as power nowhere: error and reference pair up.
    assert c.relative_l2 == pytest.approx(rest.relative_l2, nan_ok=True)
    assert isnan(c.relative_l2) == (not finite.any())


def test_a_few_numbers_near_zero_are_no_scale_of_their_own() -> None:
    reference = np.array([4e-4, -0.21, 0.34, -0.89, 0.11, 0.78], np.float32)
    for rows in (1, 8):  # padded rows repeat the number near zero
        tensor = np.tile(reference, (rows, 1))
        target = tensor + np.float32(2e-4)
        assert compare_by_scale(reference=tensor, target=target) == compare(reference=tensor, target=target)


def test_scores_beside_a_mask_are_compared_on_their_own() -> None:
    scores = np.linspace(0.5, 2.0, 12, dtype=np.float32)
    masked = np.concatenate([scores, np.full(4, -1e4, np.float32)])
    wrong = np.concatenate([-scores, np.full(4, -1e4, np.float32)])
    assert compare(reference=masked, target=wrong).relative_l2 < 1e-3
    assert compare_by_scale(reference=masked, target=wrong).relative_l2 == pytest.approx(2.0)


@given(st.lists(st.floats(width=32), min_size=1, max_size=60))
def test_octaves_are_counted_alike_by_bits_and_by_value(values: list[float]) -> None:
    held = np.array([*values, 65504.0, 65503.0, 65519.0, 6.1035156e-05, 6.103515e-05, 32768.0, -0.0], np.float32)
    np.testing.assert_array_equal(metrics._octaves(held), metrics._octaves(held.astype(np.float64)))


def test_a_large_tensor_of_two_scales_is_told_by_a_sample() -> None:
    rng = np.random.default_rng(1)
    reference = rng.standard_normal(300_000).astype(np.float32)
    target = reference.copy()
    target[:6000] *= 2
    one = compare_by_scale(reference=reference, target=target).relative_l2
    reference[rng.random(reference.size) < 0.5] *= np.float32(1e4)  # scales overlap by what is near zero: one scale
    spread = compare_by_scale(reference=reference, target=reference)
    assert spread.relative_l2 == 0
    mask = rng.random(reference.size) < 0.5
    parted = np.where(mask, np.float32(-1e4), rng.uniform(0.5, 2, reference.size).astype(np.float32))
    wrong = np.where(mask, parted, parted * np.float32(1.1))
    seen = compare_by_scale(reference=parted, target=wrong).relative_l2
    assert one < 0.2
    assert seen == pytest.approx(0.1, rel=1e-5)
    assert compare(reference=parted, target=wrong).relative_l2 < 1e-4


def by_definition(reference: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """What a comparison says of what is finite on both sides, from the textbook and in longer numbers."""
    ref, out = (tensor.astype(np.longdouble).reshape(-1) for tensor in (reference, target))
    both = np.isfinite(ref) & np.isfinite(out)
    r, o = ref[both], out[both]
    error, r0, o0 = o - r, r - r.mean(), o - o.mean()
    return {
        "relative_l2": float(np.sqrt((error**2).sum() / (r**2).sum())),
        "snr_db": float(10 * np.log10((r**2).sum() / (error**2).sum())),
        "scale": float((r * o).sum() / (r**2).sum()),
        "correlation": float((r0 * o0).sum() / np.sqrt((r0**2).sum() * (o0**2).sum())),
        "max_abs_error": float(np.abs(error).max()),
        "reference_peak": float(np.abs(ref[np.isfinite(ref)]).max()),
        "target_peak": float(np.abs(out[np.isfinite(out)]).max()),
    }


SIZES = [100, pieces.PIECE + 1]
WORST: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "close": lambda x, y: (x, x + 1e-3 * y),
    "unrelated": lambda x, y: (x, y + 0.1),
    "negated": lambda x, y: (x, 1e-3 * y - x),
    "far below": lambda x, y: (x, 1e-9 * (x + y)),
    "far above": lambda x, y: (x, 1e9 * (x + y)),
    "a large mean": lambda x, y: (1e6 + x, 1e6 + x + y),
    "opposite means": lambda x, y: (1e6 + x, x + y - 1e6),
    "tiny": lambda x, y: (1e-30 * x, 1e-30 * (x + y)),
    "denormal": lambda x, y: (1e-41 * x, 1e-41 * (x + y)),
    "huge": lambda x, y: (1e37 * x, 1e37 * (x + y)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", WORST)
@pytest.mark.parametrize("broken", [0.0, 0.3])
def test_the_worst_numbers_are_compared_to_the_last_digits(kind: str, size: int, broken: float) -> None:
    rng = np.random.default_rng(0)
    reference, target = (np.float32(side) for side in WORST[kind](*rng.standard_normal((2, size))))
    for side in (reference, target):
        for bad in (nan, inf, -inf):
            side[rng.random(size) < broken / 3] = bad
    c = asdict(compare(reference=reference, target=target))
    want = by_definition(reference, target)
    assert c["snr_db"] == pytest.approx(want.pop("snr_db"), abs=1e-9)  # a logarithm may be near zero
    assert {name: c[name] for name in want} == pytest.approx(want, rel=1e-11, abs=0)
    assert c["nonfinite"] == np.count_nonzero(~np.isfinite(target))
    assert c["reference_nonfinite"] == np.count_nonzero(~np.isfinite(reference))


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float64, np.int32, np.int8])
def test_dtypes_and_views_are_compared_as_their_values(dtype: Any, tmp_path: Path) -> None:
    reference, target = (30 * np.random.default_rng(0).standard_normal((2, 4, 130, 100))).astype(dtype)
    held = np.ascontiguousarray(reference.transpose(2, 0, 1)).transpose(1, 2, 0)
    np.asarray(target).tofile(tmp_path / "target")
    mapped = np.memmap(tmp_path / "target", dtype, "r", shape=target.shape)
    plain = compare(reference=reference.astype(np.float64), target=target.astype(np.float64))
    assert same(compare(reference=held, target=mapped), plain)
    assert same(compare(reference=mapped, target=held), compare(reference=target, target=reference))
    assert plain.zeros == np.count_nonzero(target == 0)


def test_zeros_in_place_of_numbers_are_told_from_zeros() -> None:
    reference = np.maximum(np.random.default_rng(0).standard_normal(pieces.PIECE + 100), 0).astype(np.float32)
    zeros = int(np.count_nonzero(reference == 0))
    same_zeros = compare(reference=reference, target=-reference)  # -0.0 is zero, too
    assert (same_zeros.zeros, same_zeros.new_zeros) == (zeros, 0)
    target = reference.copy()
    target[-1:] = 0
    reference[-1:] = 1
    assert compare(reference=reference, target=target).new_zeros == 1
    # What a number is lost beside counts, also where the target holds no number there.
    assert of([1000.0, 1.0, 1.0], [nan, 0.0, 1.0]).new_zeros == 0


@pytest.mark.filterwarnings("ignore:overflow")
def test_what_exceeds_float64_is_no_exception() -> None:
    c = of([1.0, 2.0], [1e200, 1e200], np.float64)
    assert (c.relative_l2, c.snr_db) == (inf, -inf)
    c = of([1e200, 2e200], [1e200, 9e200], np.float64)
    assert all(isnan(value) for value in (c.relative_l2, c.snr_db, c.correlation))
    assert of([1e-150, 2e-150, 5e-150], [1e-150, 2e-150, 4e-150], np.float64).correlation < 1


def test_infinities_where_fp16_ends() -> None:
    reference = np.tile(np.array([7e4, -1e9, 1.0, inf, nan], np.float32), 20_000)
    target = np.tile(np.array([inf, -inf, 1.0, nan, 3.0], np.float32), 20_000)
    assert true_infinities(reference, target)
    for place, wrong in ((-5, -inf), (-4, inf), (-3, inf), (-3, nan), (-5, nan)):
        broken = target.copy()
        broken[place] = wrong
        assert not true_infinities(reference, broken)


def test_nothing_is_copied_whole() -> None:
    reference = np.random.default_rng(0).standard_normal((64, 32, 64, 64), np.float32)
    target = np.ascontiguousarray(reference.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)  # as a graph holds it
    target[0, 0, 0, :5] = 0.0
    tracemalloc.start()
    compare_by_scale(reference=reference, target=target)
    compare_by_scale(reference=target, target=reference)
    target[1, 0, 0, :5] = nan
    true_infinities(reference, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < reference.nbytes / 8
