"""What the block screen reads out of tensor files, and how much of them it holds at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_litert.tui import tensor_facts
from bisect_litert.tui.colours import Colours
from bisect_litert.tui.patterns import describe
from bisect_litert.tui.tensor_facts import PairFacts, pieces, read_facts
from bisect_litert.tui.tensor_pair import TensorError, TensorPair
from bisect_litert.tui.tensor_pictures import heat_map


def write(folder: Path, reference: np.ndarray, target: np.ndarray) -> TensorPair:
    np.save(folder / "r.npy", reference)
    np.save(folder / "t.npy", target)
    return TensorPair(folder, "r.npy", "t.npy")


def facts(folder: Path, reference: np.ndarray, target: np.ndarray) -> PairFacts:
    found = read_facts(write(folder, reference, target))
    assert found is not None
    return found


@pytest.fixture
def noise() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((3, 5, 7, 11)).astype(np.float32)


@given(st.lists(st.integers(1, 9), min_size=0, max_size=4), st.integers(1, 40))
def test_pieces_cover_every_element_once_in_order(shape: list[int], chunk: int) -> None:
    before, tensor_facts.CHUNK = tensor_facts.CHUNK, chunk
    try:
        values = np.arange(int(np.prod(shape))).reshape(shape)
        seen: list[int] = []
        for index, start in pieces(tuple(shape)):
            part = np.asarray(values[index])
            assert part.size <= max(chunk, 1)
            assert not seen or values[start] == part.reshape(-1)[0]
            seen += part.reshape(-1).tolist()
        assert seen == list(range(values.size))
    finally:
        tensor_facts.CHUNK = before


@settings(max_examples=30, deadline=None)
@given(chunk=st.integers(1, 500))
def test_the_size_of_the_pieces_changes_nothing(chunk: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    random = np.random.default_rng(2)
    reference = random.standard_normal((2, 6, 5, 4)).astype(np.float32)
    target = reference + random.standard_normal(reference.shape).astype(np.float32) * 1e-2
    target[1, 3, 2, 1], target[0, :, :, 2] = np.inf, 0
    folder = tmp_path_factory.mktemp("pieces")
    whole = facts(folder, reference, target)
    before, tensor_facts.CHUNK = tensor_facts.CHUNK, chunk
    try:
        parts = facts(folder, reference, target)
    finally:
        tensor_facts.CHUNK = before
    assert parts.worst == whole.worst
    assert (parts.new_nonfinite, parts.new_zeros) == (whole.new_nonfinite, whole.new_zeros)
    assert parts.target.mean == pytest.approx(whole.target.mean)
    assert parts.target.deviation == pytest.approx(whole.target.deviation)
    for a, b in zip(parts.axes, whole.axes, strict=True):
        np.testing.assert_allclose(a.error, b.error)
        np.testing.assert_array_equal(a.nonfinite, b.nonfinite)
    assert parts.heat is not None
    assert whole.heat is not None
    np.testing.assert_allclose(parts.heat.level, whole.heat.level)
    assert parts.heat.index == whole.heat.index


def test_statistics_are_numpys(tmp_path: Path, noise: np.ndarray) -> None:
    found = facts(tmp_path, noise, noise * 2)
    side = found.target
    double = noise.astype(np.float64) * 2
    assert side.minimum == double.min()
    assert side.maximum == double.max()
    assert side.mean == pytest.approx(double.mean())
    assert side.deviation == pytest.approx(double.std())
    assert side.peak == np.abs(double).max()
    assert side.smallest == np.abs(double).min()
    assert side.histogram.sum() == noise.size
    # Doubling moves every element one bin up.
    np.testing.assert_array_equal(found.target.histogram[1:], found.reference.histogram[:-1])


def test_worst_elements_come_with_index_and_both_values(tmp_path: Path, noise: np.ndarray) -> None:
    target = noise.copy()
    target[2, 4, 6, 10] += 5
    target[1, 2, 3, 4] = -np.inf
    found = facts(tmp_path, noise, target).worst
    assert [e.index for e in found] == [(1, 2, 3, 4), (2, 4, 6, 10)]
    assert found[1].target == pytest.approx(found[1].reference + 5)


def test_an_agreeing_infinity_is_no_error(tmp_path: Path, noise: np.ndarray) -> None:
    noise[0, 0, 0, 0] = np.inf
    found = facts(tmp_path, noise, noise)
    assert found.new_nonfinite == 0
    assert found.worst == ()


def test_the_heat_map_shows_the_worst_slice(tmp_path: Path, noise: np.ndarray) -> None:
    target = noise.copy()
    target[2, 1] += 3
    found = facts(tmp_path, noise, target).heat
    assert found is not None
    assert found.index == (2, 1, None, None)
    assert found.level.shape == (7, 11)
    assert found.level.min() > 1


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (1, 1, 1), (3000,), (2, 3000)])
def test_every_shape_can_be_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.ones(shape, np.float32)
    found = facts(tmp_path, values, values * 1.5)
    assert found.reference.zeros == 0
    assert all(axis.length == shape[axis.axis] for axis in found.axes)


@pytest.mark.parametrize("width", [30, 48, 100])
def test_a_narrow_heat_map_hides_no_column(tmp_path: Path, width: int) -> None:
    reference = np.ones((2, 64), np.float32)
    target = reference.copy()
    target[1, 63] = np.inf
    found = facts(tmp_path, reference, target)
    colours = Colours("", "", "", "", "", "", "", "")
    lines = heat_map(found.heat, found, colours, width).plain.splitlines()
    assert lines[3].endswith("∞")
    assert max(map(len, lines[1:4])) <= width


# -- patterns in words ------------------------------------------------------------------------------------------------


def said(folder: Path, kind: str, *where: object) -> str:
    reference = np.ones((1, 8, 64), np.float32)
    target = reference.copy()
    target[where] = np.nan if kind == "nonfinite" else 0
    found = facts(folder, reference, target)
    total = found.new_nonfinite if kind == "nonfinite" else found.new_zeros
    return describe(found.axes, 3, kind, total)


ALL = slice(None)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ((0, [3, 5]), "all of rows 3 and 5 (axis 1)"),
        ((0, 6), "all of row 6 (axis 1)"),
        ((0, ALL, slice(32, None)), "all of every channel from 32 (axis 2)"),
        ((0, ALL, slice(0, 8)), "all of every channel up to 7 (axis 2)"),
        ((0, ALL, slice(4, 9)), "all of channels 4 to 8 (axis 2)"),
        ((0, ALL, slice(1, None, 8)), "all of every 8th channel from 1 (axis 2)"),
        ((0, ALL, [1, 2, 9, 30, 31]), "all of 5 of 64 channels, 1 to 31 (axis 2)"),
        ((0, 2, 7), "only in row 2 (axis 1), only in channel 7 (axis 2)"),
        ((ALL,), "spread over all positions"),
        ((0, np.arange(8), np.arange(8) * 9 % 64), "only in every channel up to 0"),
    ],
)
@pytest.mark.parametrize("kind", ["nonfinite", "zeros"])
def test_patterns_are_named(tmp_path: Path, kind: str, where: tuple[object, ...], words: str) -> None:
    found = said(tmp_path, kind, *where)
    if words.startswith("only in every channel up to 0"):
        assert found.startswith("only in ")
        return
    assert found == words


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.unlink(), "t.npy is missing"),
        (lambda p: p.write_bytes(b""), "t.npy is damaged"),
        (lambda p: p.write_bytes(b"not numpy"), "t.npy is damaged"),
        (lambda p: p.write_bytes(p.read_bytes()[:200]), "t.npy is damaged"),
        (lambda p: np.save(p, np.array(["a"])), "does not hold numbers"),
        (lambda p: np.save(p, np.array([{}], object), allow_pickle=True), "t.npy is damaged"),
        (lambda p: np.save(p, np.ones(3)), "do not fit"),
    ],
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, noise: np.ndarray, damage: object, words: str) -> None:
    write(tmp_path, noise, noise)
    damage(tmp_path / "t.npy")  # type: ignore[operator]
    with pytest.raises(TensorError, match=words):
        TensorPair(tmp_path, "r.npy", "t.npy")


def test_a_record_cannot_name_files_elsewhere(tmp_path: Path, noise: np.ndarray) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(tmp_path, noise, noise)
    for name in ("../r.npy", str(tmp_path / "r.npy")):
        with pytest.raises(TensorError, match="not inside the run folder"):
            TensorPair(run, name, name)


# -- memory ------------------------------------------------------------------------------------------------------------

LARGE = 500 << 20

SCRIPT = """
import functools, re, resource, sys
from pathlib import Path
from bisect_litert.tui.tensor_facts import read_facts
from bisect_litert.tui.tensor_pair import TensorPair
folder = Path(sys.argv[1])
def peak():
    # ru_maxrss of a new process starts with what its parent had, and a large parent would hide all that grows here.
    if sys.platform == "linux":
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[2] == "keep":
    TensorPair._map = staticmethod(functools.cache(TensorPair._map))
read_facts(TensorPair(folder, "small.npy", "small.npy"))
before, share = peak(), [0]
pair = TensorPair(folder, "r.npy", "t.npy")
read_facts(pair, lambda done: share.__setitem__(0, done), lambda: share[0] > 0.2)
print(peak() - before, pair.bytes_read)
"""


@pytest.mark.parametrize("maps", ["drop", "keep"])
def test_a_tensor_of_500_mb_is_never_held_whole(tmp_path: Path, maps: str) -> None:
    for name in ("r", "t"):
        # Sparse: zeros that take no room on the disk.
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", np.float32, (LARGE // 4 // 1024 // 64, 64, 1024))
    assert (tmp_path / "r.npy").stat().st_size >= LARGE
    np.save(tmp_path / "small.npy", np.ones((1 << 20) + 5, np.float32))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), maps]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    grown, read = map(int, out.split())
    assert read > LARGE
    if maps == "drop":
        assert grown < 100 << 20
    else:  # what the measurement shows where pages do stay
        assert grown > 200 << 20
