"""Where digits go: in one op, in a difference of several that were rounded, or in what a block is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bisect_litert.graphs.graph import Op
from bisect_litert.search.digits import where_lost

LARGE, SMALL = np.full(8, 100.0, np.float32), np.full(8, 0.5, np.float32)
GRAPH: Any = SimpleNamespace(constant=lambda _: None)
OPS = [Op(0, "MUL", (0, 1), (2,)), Op(1, "TANH", (2,), (3,)), Op(2, "MUL", (0, 1), (4,)), Op(3, "SUB", (3, 4), (5,))]
"""Two products of what is given (0, 1), one of them behind a tanh, and their difference."""
CANCELLING = {0: LARGE, 1: LARGE, 2: LARGE, 3: LARGE, 4: LARGE, 5: SMALL}


@pytest.mark.parametrize(
    ("written", "given", "values", "op", "says"),
    [
        # one op stands out, and what handles its result next loses as much
        ({0: 0.3, 1: 0.3, 2: 1e-4, 3: 1e-4}, {0: 1e-4}, CANCELLING, 0, "Rounding the result of MUL (op 0) alone"),
        # two terms were rounded, and only their difference shows it
        ({0: 0.2, 1: 0.3, 2: 0.3, 3: 1e-4}, {}, CANCELLING, 3, "Large terms cancel in SUB (op 3): it writes 200 times"),
        # the same where nothing cancels
        ({0: 0.2, 1: 0.3, 2: 0.3, 3: 1e-4}, {}, {**CANCELLING, 5: LARGE}, 0, "Rounding the result of MUL (op 0)"),
        # what is given has lost them already: the op that reads it, or the difference of two such
        ({0: 1e-4, 1: 1e-4, 2: 1e-4, 3: 1e-4}, {0: 0.3}, CANCELLING, 0, "Rounding what MUL (op 0) is given alone"),
        # lost at home as well, it is lost at home
        ({0: 0.3, 1: 1e-4, 2: 1e-4, 3: 1e-4}, {0: 0.3}, CANCELLING, 0, "Rounding the result of MUL (op 0)"),
        ({0: 0.0, 1: 0.0, 2: float("nan")}, {}, CANCELLING, -1, ""),
    ],
)
def test_the_op_to_blame(
    written: dict[int, float], given: dict[int, float], values: dict[int, np.ndarray], op: int, says: str
) -> None:
    lost = where_lost(GRAPH, OPS, written, given, values, 0.3)
    assert lost.op == op
    assert lost.said.startswith(says)


def test_two_inputs_that_are_subtracted_meet_in_the_difference() -> None:
    ops = [Op(0, "SUB", (0, 1), (2,)), Op(1, "ADD", (2, 9), (3,))]
    lost = where_lost(GRAPH, ops, {0: 0.0, 1: 1e-4}, {0: 0.2, 1: 0.25}, {0: LARGE, 1: LARGE, 2: SMALL}, 0.3)
    assert (lost.op, "Large terms cancel in SUB (op 0)" in lost.said) == (0, True)


def test_a_share_too_small_to_explain_the_error_names_no_op() -> None:
    assert where_lost(GRAPH, OPS, {0: 0.02, 1: 1e-5}, {}, CANCELLING, 0.3).op == -1
    assert where_lost(GRAPH, OPS, {0: 0.04, 1: 1e-5}, {}, CANCELLING, 0.3).op == 0
