"""Looking tensors up finds all that may hold a value, whatever their size and layout, and takes them in pieces."""

from __future__ import annotations

import tracemalloc
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from bisect_litert.measuring.pieces import PIECE, flat_pieces, pairs
from bisect_litert.taps.fingerprints import FLOAT32_MAX, Fingerprints, distance, fingerprint, similar

FLOATS = numpy_strategies.arrays(
    np.float32, numpy_strategies.array_shapes(max_dims=4, max_side=6), elements=st.floats(width=32)
)
ORDERS = st.randoms(use_true_random=False)


def plain_distance(a: np.ndarray, b: np.ndarray) -> float:
    """The same in one piece."""
    wide = [np.where(np.abs(v) >= FLOAT32_MAX, np.copysign(inf, v), v).astype(np.float64) for v in (a, b)]
    x, y = (w.reshape(-1) for w in wide)
    fx = np.isfinite(x)
    if not np.array_equal(fx, np.isfinite(y)) or not np.array_equal(x[~fx], y[~fx], equal_nan=True):
        return inf
    return float(np.linalg.norm(x[fx] - y[fx]))


@pytest.fixture(autouse=True, params=[3, PIECE])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything in pieces of three elements as well."""
    for function in (flat_pieces, pairs):
        monkeypatch.setattr(function, "__defaults__", (request.param,))


@given(FLOATS, ORDERS)
def test_permutations_and_reshapes_leave_it_alone(value: np.ndarray, order: object) -> None:
    axes = list(range(value.ndim))
    order.shuffle(axes)  # type: ignore[attr-defined]
    moved = value.transpose(axes)
    one, other = fingerprint(value), fingerprint(np.ascontiguousarray(moved).reshape(-1))
    assert similar(one, other, 1e-12)
    assert similar(one, fingerprint(moved), 1e-12)
    assert list(Fingerprints({"x": moved}).near(value, 1e-12)) == ["x"]


@given(FLOATS, ORDERS)
def test_pieces_are_the_elements_in_order(value: np.ndarray, order: object) -> None:
    axes = list(range(value.ndim))
    order.shuffle(axes)  # type: ignore[attr-defined]
    moved = value.transpose(axes)
    np.testing.assert_array_equal(np.concatenate(list(flat_pieces(moved))), moved.reshape(-1))


@given(FLOATS, st.floats(0, 2, width=32), ORDERS)
def test_distance_is_that_of_whole_tensors(value: np.ndarray, step: float, order: object) -> None:
    axes = list(range(value.ndim))
    order.shuffle(axes)  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        other = (value + np.float32(step)).transpose(axes)
    expected = plain_distance(value.transpose(axes), np.ascontiguousarray(other))
    assert distance(value.transpose(axes), np.ascontiguousarray(other)) == pytest.approx(expected, rel=1e-12)


@given(FLOATS, st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_what_is_near_is_found(value: np.ndarray, tolerance: float, seed: int) -> None:
    norm = fingerprint(value).norm
    noise = np.random.default_rng(seed).standard_normal(value.shape)
    noise *= 0.99 * tolerance * norm / max(np.linalg.norm(noise), 1e-300)
    with np.errstate(all="ignore"):
        other = np.where(np.isfinite(value) & (np.abs(value) < FLOAT32_MAX), value + noise, value)
    if np.isfinite(value).all() and (np.abs(other) < FLOAT32_MAX).all():
        assert "x" in Fingerprints({"x": other}).near(value.astype(np.float64), tolerance)


def test_others_are_not_found() -> None:
    held = {"nan": [1.0, nan], "inf": [1.0, inf], "zero": [0.0, 0.0], "one": [1.0, 0.0], "three": [1.0, 0.0, 0.0]}
    index = Fingerprints({k: np.array(v, np.float32) for k, v in held.items()} | {"int": np.array([1, 0])})
    assert list(index.near(np.array([0.0, 1.0], np.float32), 1e-3)) == ["one"]
    assert list(index.near(np.array([nan, 1.0], np.float32), 1e-3)) == ["nan", "inf"]  # distance tells these apart
    assert list(index.near(np.array([[1, 0]]), 1e-3)) == ["int"]
    assert list(index.near(np.zeros((0,), np.float32), 1e-3)) == []
    assert distance(np.array([1.0, nan]), np.array([1.0, inf])) == inf
    assert distance(np.array([inf, 1.0]), np.array([FLOAT32_MAX, 1.0], np.float32)) == 0.0


def test_no_tensor_is_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (flat_pieces, pairs):
        monkeypatch.setattr(function, "__defaults__", (PIECE,))
    value = np.zeros((256, 1 << 16), np.float32)
    tracemalloc.start()
    fingerprint(value.T)
    distance(value.reshape(256, 256, 256).transpose(2, 0, 1), value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < value.nbytes / 2
