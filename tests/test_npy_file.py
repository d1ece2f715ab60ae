"""Arrays come back as numpy wrote them, and without Python's own parser, which two threads cannot share."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bisect_litert.devices.npy_file import read_npy

DTYPES = ["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", ">f4"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    array=st.sampled_from(DTYPES).flatmap(
        lambda d: arrays.arrays(d, arrays.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4))
    ),
    transposed=st.booleans(),
    mapped=st.booleans(),
)
def test_what_numpy_saves_is_read(array: np.ndarray, transposed: bool, mapped: bool, tmp_path: Path) -> None:
    written = array.T if transposed else array
    np.save(tmp_path / "x.npy", written)
    found = read_npy(tmp_path / "x.npy", mapped=mapped)
    assert (found.dtype, found.shape) == (written.dtype, written.shape)
    np.testing.assert_array_equal(found, written)


def test_pythons_parser_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))

    def broken(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=48, after=45)")

    monkeypatch.setattr(ast, "parse", broken)
    with pytest.raises(SystemError):
        np.load(tmp_path / "x.npy")
    assert read_npy(tmp_path / "x.npy").shape == (2, 3)


def numpy_file(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no .npy file"),
        (b"PK\x03\x04 something else", "no .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "nothing of plain numbers"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of"),
        (numpy_file("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"12345678"), "holds objects"),
        (numpy_file("{'descr': '<z4', 'fortran_order': False, 'shape': (1,), }", b"1234"), "holds <z4"),
        (numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }", b"1234"), "not whole"),
        (numpy_file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", b"1234"), "plain numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_said(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_npy(tmp_path / "x.npy")
