"""Blocks that hardly change their input: each gets its own tensor, in the order in which they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
from test_tapper import FakeGraph

from bisect_litert.graphs.graph import Op
from bisect_litert.taps.tapping import locate

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 32)).astype(np.float32)
STEP = RNG.standard_normal((4, 32)).astype(np.float32)


def after(steps: int) -> np.ndarray:
    """X after a number of steps of 5e-7 of its size."""
    return (X.astype(np.float64) + 5e-7 * steps * STEP).astype(np.float32)


def located(
    points: Mapping[str, np.ndarray], tensors: Mapping[str, np.ndarray], moves: Sequence[int] = ()
) -> list[str]:
    """The tensor each point is given; points are named module or module@call."""
    graph = FakeGraph(tensors)
    for t in moves:
        graph.producer[t] = Op(t, "RESHAPE", (t - 1,), (t,))
    graph.inputs = ()  # type: ignore[attr-defined]
    made = [SimpleNamespace(key=k, block=k.split("@")[0], block_key=k, class_name="", call=1, label="") for k in points]
    taps = locate(graph, made, points, dict(enumerate(tensors.values())), dict.fromkeys(points, 1e-5))  # type: ignore[arg-type]
    return [list(tensors)[t.tensor] if t.tensor >= 0 else "" for t in taps]


def test_calls_of_one_module_that_hardly_differ_keep_their_order() -> None:
    names = ["in", "M/Cell_cell;1", "M/Cell_cell;2", "M/Cell_cell;3"]
    tensors = dict(zip(names, [0 * X, after(0), after(1), after(2)], strict=True))
    assert located({"cell": after(0), "cell@2": after(1), "cell@3": after(2)}, tensors) == names[1:]


def test_a_copy_belongs_to_the_call_that_it_copies() -> None:
    names = ["in", "M/Cell_cell;1", "M/Cell_cell;11", "M/Cell_cell;2", "M/Cell_cell;22"]
    tensors = dict(zip(names, [0 * X, after(0), after(0), after(1), after(1)], strict=True))
    assert located({"cell": after(0), "cell@2": after(1)}, tensors, moves=(2, 4)) == [names[2], names[4]]


def test_blocks_without_names_do_not_share_the_first_tensor_that_fits_both() -> None:
    tensors = {"in": 0 * X, "x": after(0), "y": after(1), "z": after(2)}
    assert located({"a": after(0), "b": after(1), "c": after(2)}, tensors) == ["x", "y", "z"]


def test_one_value_under_two_names_stays_one_tensor() -> None:
    tensors = {"in": 0 * X, "x": after(0), "y": after(1)}
    assert located({"a": after(0), "dropout": after(0), "b": after(1)}, tensors) == ["x", "x", "y"]


def test_where_the_graph_has_one_tensor_only_it_is_given_to_both() -> None:
    assert located({"a": after(0), "b": after(1)}, {"in": 0 * X, "x": after(0)}) == ["x", "x"]
