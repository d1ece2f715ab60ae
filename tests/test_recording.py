"""From findings to words and marks, on findings written by hand."""

from __future__ import annotations

import time
from datetime import datetime, timezone

import pytest
from test_culprits import SETTINGS, reading

from bisect_litert.measuring.readings import Tap
from bisect_litert.record import Culprit
from bisect_litert.records.recording import build_record
from bisect_litert.verdicts.judging import Findings
from bisect_litert.vocabulary import OTHER_WEIGHTS, Cause, Mark, TapOrigin


def findings() -> Findings:
    tap = Tap("a", "a", "a", "Linear", 1, "", (2, 2), "float32", TapOrigin.GRAPH)
    known = Findings("m", [], SETTINGS, "PyTorch", datetime.now(timezone.utc), time.monotonic())
    known.taps = [tap]
    return known


@pytest.mark.parametrize(
    ("cause", "kind", "said"),
    [
        (Cause.PRECISION_LOSS, "", "a loses digits, which no output shows"),
        (Cause.OVERFLOW, "", "a turns large numbers into infinities, which no output shows"),
        (Cause.OVERFLOW, "underflow", "a flushes small numbers to zero, which no output shows"),
        (Cause.CONVERSION, "", "a was changed by the conversion, which no output shows"),
        (Cause.CONVERSION, OTHER_WEIGHTS, "a has other weights in the file, which no output shows"),
    ],
)
def test_what_no_output_shows_is_called_what_it_is(cause: Cause, kind: str, said: str) -> None:
    known = findings()
    known.found.lost = [Culprit("a", cause, kind, ("It was measured.",), "")]
    assert f"{said}: It was measured." in build_record(known).verdict.notes


@pytest.mark.parametrize(("unsettled", "mark"), [(frozenset(), Mark.AFTER), (frozenset({"a"}), Mark.UNKNOWN)])
def test_what_was_wrong_behind_a_culprit_and_never_healed_is_not_known(unsettled: frozenset[str], mark: Mark) -> None:
    known = findings()
    known.found.readings = [reading(block="a", cumulative=0.3, local=0.012)]
    known.found.culprits = [Culprit("z", Cause.OVERFLOW, "", (), "")]
    known.found.unsettled = unsettled
    assert [b.mark for b in build_record(known).blocks] == [mark]
