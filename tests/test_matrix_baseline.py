"""One matrix against an earlier one: which change is for the worse, and what the exit code makes of it."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from bisect_litert.errors import ExitCode
from bisect_litert.matrix.baseline import Baseline
from bisect_litert.matrix.table import Cell, ChangeKind, Code, Matrix
from bisect_litert.vocabulary import Cause

OK = Cell("m", "t", Code.OK, relative_l2=1e-3, correlation=1.0, gpu_ops=10, ops=10)
DIFF = replace(OK, code=Code.DIFF, cause=Cause.OVERFLOW, block="b.3", relative_l2=0.2, exit_code=1)
PARTIAL = replace(OK, code=Code.PARTIAL, gpu_ops=6)
REJECT = replace(OK, code=Code.REJECT, gpu_ops=0, relative_l2=nan, exit_code=125)
SKIP = Cell("m", "t", Code.SKIP)
T_SKIP = Cell("m", "t", Code.T_SKIP, exit_code=125)


def failed(code: Code) -> Cell:
    return Cell("m", "t", code, exit_code=125)


def matrix(*cells: Cell) -> Matrix:
    names = tuple(dict.fromkeys(c.model for c in cells))
    return Matrix("T", names, tuple(dict.fromkeys(c.target for c in cells)), cells)


@pytest.mark.parametrize(
    ("before", "now", "kind", "code"),
    [
        (OK, OK, None, 0),
        (DIFF, DIFF, None, 0),  # known
        (OK, DIFF, ChangeKind.NEW, 1),
        (PARTIAL, DIFF, ChangeKind.NEW, 1),
        (failed(Code.C_FAIL), DIFF, ChangeKind.NEW, 1),
        (DIFF, OK, ChangeKind.FIXED, 0),
        (DIFF, PARTIAL, ChangeKind.FIXED, 0),
        (failed(Code.T_FAIL), OK, ChangeKind.FIXED, 0),
        (DIFF, replace(DIFF, block="b.1"), ChangeKind.OTHER, 1),
        (DIFF, replace(DIFF, cause=Cause.WRONG_KERNEL), ChangeKind.OTHER, 1),
        (DIFF, replace(DIFF, more=1), ChangeKind.OTHER, 1),
        (replace(DIFF, more=1), DIFF, None, 0),
        (OK, replace(OK, relative_l2=1.9e-3), None, 0),
        (OK, replace(OK, relative_l2=2.1e-3), ChangeKind.WORSE, 1),
        (replace(OK, relative_l2=2.1e-3), OK, ChangeKind.BETTER, 0),
        (replace(OK, relative_l2=1e-7), replace(OK, relative_l2=4e-4), None, 0),  # both below fp16's own unit
        (DIFF, replace(DIFF, relative_l2=0.9), ChangeKind.WORSE, 1),
        (DIFF, replace(DIFF, nonfinite=3), ChangeKind.WORSE, 1),
        (replace(DIFF, nonfinite=3), DIFF, ChangeKind.BETTER, 0),
        (OK, replace(OK, relative_l2=nan), None, 0),
        (OK, PARTIAL, ChangeKind.REFUSED, 1),
        (PARTIAL, replace(PARTIAL, gpu_ops=5), ChangeKind.REFUSED, 1),
        (PARTIAL, replace(PARTIAL, gpu_ops=12, ops=20), None, 0),  # the same share of a larger graph
        (PARTIAL, OK, None, 0),
        (OK, REJECT, ChangeKind.REFUSED, 1),
        (REJECT, REJECT, None, 0),
        (REJECT, OK, ChangeKind.FIXED, 0),
        (OK, failed(Code.L_FAIL), ChangeKind.FAILS, 1),
        (DIFF, failed(Code.T_FAIL), ChangeKind.FAILS, 1),
        (failed(Code.C_FAIL), failed(Code.T_FAIL), None, 0),
        (OK, T_SKIP, ChangeKind.NOT_TESTED, 125),
        (OK, SKIP, ChangeKind.NOT_TESTED, 125),
        (T_SKIP, T_SKIP, None, 0),
        (T_SKIP, OK, ChangeKind.FIXED, 0),
    ],
)
def test_what_changed(before: Cell, now: Cell, kind: ChangeKind | None, code: int) -> None:
    found = matrix(now)
    changes = Baseline(matrix(before)).changes(found)
    assert [c.kind for c in changes] == ([kind] if kind else [])
    assert replace(found, changes=changes).exit_code == code
    assert all(c.detail for c in changes)


def test_the_factor_is_the_users() -> None:
    worse = matrix(replace(OK, relative_l2=4e-3))
    assert Baseline(matrix(OK), 5.0).changes(worse) == ()
    assert [c.kind for c in Baseline(matrix(OK), 3.9).changes(worse)] == [ChangeKind.WORSE]


def test_rows_that_come_and_go_are_told_and_do_not_count() -> None:
    new = replace(DIFF, model="new")
    open_cell = Cell("m", "t", Code.OPEN)
    found = matrix(open_cell, new)
    changes = Baseline(matrix(OK, replace(OK, model="old"))).changes(found)
    assert [(c.model, c.kind) for c in changes] == [("new", ChangeKind.ADDED), ("old", ChangeKind.GONE)]
    assert replace(found, changes=changes).exit_code == ExitCode.OK
    assert found.exit_code == ExitCode.DIVERGED
