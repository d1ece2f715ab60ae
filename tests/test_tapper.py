"""Finding a block's output among a graph's tensors: values prove, names propose, and a wrong tensor never passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from small_models import Converted, run_cpu

from bisect_litert.graphs.graph import Op, Tensor
from bisect_litert.taps.tapper import Finder, Layout, Partner

Once = Callable[[str], Converted]
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4)).astype(np.float32)


class FakeGraph:
    """Tensors that follow one from the other, the first from the graph's input."""

    def __init__(self, named: Mapping[str, np.ndarray], constants: tuple[str, ...] = ()) -> None:
        self.tensors = tuple(
            Tensor(i, name, value.shape, "FLOAT32", name in constants) for i, (name, value) in enumerate(named.items())
        )
        self.computed = frozenset(t.index for t in self.tensors if not t.constant)
        self.producer = {t.index: Op(t.index, "ADD", (t.index - 1,), (t.index,)) for t in self.tensors[1:]}


def find(
    value: np.ndarray, module: str, named: Mapping[str, np.ndarray], tolerance: float = 1e-5, **more: tuple[str, ...]
) -> Partner | None:
    graph = FakeGraph(named, **more)
    values = dict(enumerate(named.values()))
    return Finder(graph, values).find(value, module, tolerance)  # type: ignore[arg-type]


def chosen(value: np.ndarray, module: str, named: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> str | None:
    found = find(value, module, named, tolerance)
    return list(named)[found.tensor] if found else None


@st.composite
def arrangements(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]:
    """A tensor, an order of its axes, and the shape a reshape behind that gives."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=5)))
    order = tuple(draw(st.permutations(range(len(shape)))))
    moved = tuple(shape[a] for a in order)
    cut = draw(st.integers(0, len(moved)))
    flat = (int(np.prod(moved[:cut])), int(np.prod(moved[cut:])))
    after = draw(st.sampled_from([moved, flat, (1, *moved), (int(np.prod(moved)),)]))
    value = np.random.default_rng(draw(st.integers(0, 1000))).standard_normal(shape).astype(np.float32)
    return value, order, after


@given(arrangements())
@hypothesis_settings(max_examples=150, deadline=None)
def test_a_layout_undoes_itself(case: tuple[np.ndarray, tuple[int, ...], tuple[int, ...]]) -> None:
    value, order, after = case
    layout = Layout(value.shape, order)
    there = layout.from_torch(value, after)
    assert there.shape == after
    assert there.flags.c_contiguous
    np.testing.assert_array_equal(there.reshape(-1), value.transpose(order).reshape(-1))
    np.testing.assert_array_equal(layout.to_torch(there), value)


@given(arrangements())
@hypothesis_settings(max_examples=150, deadline=None)
def test_any_permutation_and_reshape_is_recovered(
    case: tuple[np.ndarray, tuple[int, ...], tuple[int, ...]],
) -> None:
    value, order, after = case
    tensor = Layout(value.shape, order).from_torch(value, after)
    found = find(value, "b", {"in": np.zeros(1, np.float32), "M/Block_b;1": tensor})
    assert found is not None
    assert found.tensor == 1
    assert found.named
    np.testing.assert_array_equal(found.layout.to_torch(tensor), value)


@pytest.mark.parametrize(
    ("order", "shape", "words"),
    [((0, 1, 2), (2, 3, 4), ""), ((0, 1, 2), (6, 4), "reshape"), ((0, 2, 1), (2, 4, 3), "permute 0,2,1")],
)
def test_layouts_in_words(order: tuple[int, ...], shape: tuple[int, ...], words: str) -> None:
    assert Layout((2, 3, 4), order).describe(shape) == words


def test_scalars() -> None:
    value = np.float32(3.5).reshape(())
    found = find(value, "b", {"in": np.float32(1).reshape(()), "x": np.array([[3.5]], np.float32)})
    assert found is not None
    assert found.layout.to_torch(np.array([[2.0]], np.float32)).shape == ()


def test_float32_noise_is_no_difference_and_more_is() -> None:
    noise = RNG.standard_normal(X.shape).astype(np.float32)
    noise *= np.linalg.norm(X) / np.linalg.norm(noise)
    assert find(X, "b", {"in": 0 * X, "x": X + 3e-6 * noise}) is not None
    assert find(X, "b", {"in": 0 * X, "x": X + 3e-5 * noise}) is None
    # Sums added up one by one lose more; a tensor named after the block may.
    assert find(X, "b", {"in": 0 * X, "M/Block_b;1": X + 3e-5 * noise}) is not None
    assert find(X, "b", {"in": 0 * X, "M/Block_b;1": X + 3e-3 * noise}) is None
    assert find(X, "b", {"in": 0 * X, "M/Block_b;1": X + 3e-5 * noise}, tolerance=1e-4) is not None


def test_one_wrong_element_is_a_wrong_tensor() -> None:
    big = RNG.standard_normal(100_000).astype(np.float32)
    wrong = big.copy()
    wrong[54_321] += 1
    assert find(big, "b", {"in": big[:1], "M/Block_b;1": wrong}) is None


def test_the_right_values_in_the_wrong_places_are_a_wrong_tensor() -> None:
    assert find(X, "b", {"in": X[:1], "M/Block_b;1": X.reshape(-1)[::-1].reshape(X.shape)}) is None
    assert find(X, "b", {"in": X[:1], "M/Block_b;1": np.sort(X.reshape(-1))}) is None


@pytest.mark.parametrize("other", [X[:1], -X, 2 * X, X + 1, (X * 10).astype(np.int32), X > 0])
def test_what_is_no_partner(other: np.ndarray) -> None:
    assert find(X, "b", {"in": X[:1], "M/Block_b;1": other}) is None


def test_constants_and_tensors_without_a_value_are_no_partners() -> None:
    assert find(X, "b", {"in": X[:1], "x": X}, constants=("x",)) is None
    assert Finder(FakeGraph({"in": X[:1], "x": X}), {}).find(X, "b", 1e-5) is None  # type: ignore[arg-type]


def test_the_same_infinities_are_equal_and_others_are_not() -> None:
    masked = X.copy()
    masked[0, :, 2] = -np.inf
    assert chosen(masked, "b", {"in": X[:1], "plain": X, "masked": masked}) == "masked"
    moved = np.ascontiguousarray(masked.transpose(0, 2, 1))
    found = find(masked, "b", {"in": X[:1], "moved": moved})
    assert found is not None
    assert found.layout.permutation == (0, 2, 1)
    elsewhere = X.copy()
    elsewhere[1, :, 2] = -np.inf
    assert find(masked, "b", {"in": X[:1], "M/Block_b;1": elsewhere}) is None


def test_an_infinity_of_the_other_sign_is_another_tensor() -> None:
    masked = X.copy()
    masked[0, 0, 0] = -np.inf
    other = masked.copy()
    other[0, 0, 0] = np.inf
    assert find(masked, "b", {"in": X[:1], "M/Block_b;1": other}) is None


def test_among_equal_tensors_the_name_decides_and_the_end_of_the_block() -> None:
    positive = np.abs(X)
    tensors = {
        "in": X[:1],
        "M/Block_a;1": positive,
        "M/Block_b/Linear_fc;2": positive,
        "M/Block_b;3": positive,  # a ReLU that changed nothing
        "M/Block_c;1": positive,  # an identity
    }
    assert chosen(positive, "a", tensors) == "M/Block_a;1"
    assert chosen(positive, "b", tensors) == "M/Block_b;3"
    assert chosen(positive, "b.fc", tensors) == "M/Block_b/Linear_fc;2"
    assert chosen(positive, "c", tensors) == "M/Block_c;1"
    # Nobody carries the name: the first holder is who computed it.
    assert chosen(positive, "d", tensors) == "M/Block_a;1"


def test_a_nearly_equal_residual_is_told_apart_by_name() -> None:
    y = (X + np.float32(3e-7) * np.sin(X)).astype(np.float32)
    assert 0 < np.linalg.norm(y - X) / np.linalg.norm(X) < 1e-6
    tensors = {"in": X[:1], "M/Block_a;1": X, "M/Block_b;1": y}
    assert chosen(y, "b", tensors) == "M/Block_b;1"
    assert chosen(X, "a", tensors) == "M/Block_a;1"


def test_a_residual_that_is_told_apart_by_value_needs_no_name() -> None:
    y = (X + np.float32(1e-4) * np.sin(X)).astype(np.float32)
    tensors = {"in": X[:1], "M/Block_b;1": X, "other": y}
    assert chosen(y, "b", tensors, tolerance=1e-2) == "other"


def test_an_op_s_own_name_goes_before_that_of_a_constant_which_it_shares() -> None:
    tensors = {"in": X[:1], "M/Block_0;;M/Block_0/Linear_l;": X, "M/Block_1;;M/Block_0;;M/Block_1/Linear_l;": X}
    assert chosen(X, "0", tensors) == "M/Block_0;;M/Block_0/Linear_l;"
    assert chosen(X, "1", tensors) == "M/Block_1;;M/Block_0;;M/Block_1/Linear_l;"
    # Fused into another's op, and there alone.
    assert chosen(X, "l", {"in": X[:1], "M/Other;": X, "M/Block_1;;M/Linear_l;": X}) == "M/Block_1;;M/Linear_l;"


def test_without_a_name_a_block_is_not_looked_for_before_what_ran_before_it() -> None:
    named = {"in": X[:1], "M/Block_0;": X, "M/Block_1;": X, "output": X}
    finder = Finder(FakeGraph(named), dict(enumerate(named.values())))  # type: ignore[arg-type]
    assert [finder.find(X, "2", 1e-5, behind).tensor for behind in (-1, 1, 2, 3)] == [1, 1, 2, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("layers.0", "M/Layer_0/Linear_fc;1"),  # the container's level is missing
        ("layers.0.fc", "M/ModuleList_layers/Layer_0/Linear_fc;1"),
        ("my_block", "M/pkg.Block_my_block;"),
        ("b", "M/Block_a;1;;M/Block_b;2"),  # fused
        ("b", "M/Block_b;1/tap"),
    ],
)
def test_names_carry_the_module_path(module: str, name: str) -> None:
    tensors = {"in": X[:1], "M/Other_x;1": X, name: X, "M/Other_z;1": X}
    assert chosen(X, module, tensors) == name


def test_the_plain_order_of_a_symmetric_matrix_is_kept() -> None:
    gram = (X[0] @ X[0].T).astype(np.float32)
    noisy = gram.copy()
    noisy[0, 1] *= np.float32(1 + 1e-6)  # closer to the transpose than to itself
    value = np.ascontiguousarray(noisy.T)
    found = find(value, "b", {"in": X[:1], "M/Block_b;1": noisy})
    assert found is not None
    assert found.layout.plain


@pytest.mark.parametrize("value", [np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)])
def test_constants_by_value_keep_the_plain_order(value: np.ndarray) -> None:
    found = find(value, "b", {"in": X[:1], "M/Block_b;1": value.reshape(3, 2)})
    assert found is not None
    assert found.layout.plain


def test_nhwc_in_a_converted_graph(converted: Once, tmp_path: Path) -> None:
    case = converted("convolutions")
    import torch

    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    with torch.no_grad():
        value = torch.relu(case.module.c0(*case.args)).numpy()
    found = Finder(case.graph, values).find(value, "c0", 1e-5)
    assert found is not None
    assert case.graph.producer[found.tensor].type == "CONV_2D"
    assert found.layout.describe(case.graph.tensors[found.tensor].shape) == "permute 0,2,3,1"
    np.testing.assert_allclose(found.layout.to_torch(values[found.tensor]), value, rtol=1e-5, atol=1e-6)
    # Before the activation there is no such tensor: it was fused.
    with torch.no_grad():
        assert Finder(case.graph, values).find(case.module.c0(*case.args).numpy(), "c0", 1e-5) is None


def test_every_block_of_a_converted_graph_is_found(converted: Once, tmp_path: Path) -> None:
    case = converted("blocks")
    import torch

    values = run_cpu(case.graph, case.inputs, tmp_path).tensors
    x, ends = case.args[0], []
    with torch.no_grad():
        for name in ("b0", "b1", "b2"):
            x = getattr(case.module, name)(x)
            found = Finder(case.graph, values).find(x.numpy(), name, 1e-5)
            assert found is not None
            ends.append(case.graph.producer[found.tensor].index)
    assert ends == [2, 5, 8]
