"""What dataclasses are in JSON, and what is not taken for one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Any

import pytest
import sample_record as sample

from bisect_litert.json_form import from_json_form, to_json_form
from bisect_litert.record import RunRecord, Word


class Colour(Word):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    size: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    ends: tuple[int, float]
    best: Part | None = None
    by_colour: dict[Colour, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Strange:
    names: set[str]


WHOLE = Whole("w", (Part(1), Part(-inf)), (2, 3.5), None, {Colour.RED: (0.5, inf)})
FORM: dict[str, Any] = {
    "name": "w",
    "parts": [{"size": 1.0, "colour": "red"}, {"size": "-Infinity", "colour": "red"}],
    "ends": [2, 3.5],
    "best": None,
    "by_colour": {"red": [0.5, "Infinity"]},
}


def test_there_and_back() -> None:
    assert json.dumps(to_json_form(WHOLE)) == json.dumps(FORM)  # with 1.0 where a float is meant
    assert from_json_form(FORM, Whole) == WHOLE
    assert isnan(from_json_form(to_json_form(Part(nan)), Part).size)
    assert from_json_form([FORM["parts"][0]], tuple[Part, ...]) == (Part(1.0),)


@pytest.mark.parametrize("record", [sample.overflow(), sample.healthy(), sample.nan_metrics()])
def test_a_record_is_the_same_after_it(record: RunRecord) -> None:
    form = json.loads(json.dumps(to_json_form(record), allow_nan=False))
    assert repr(from_json_form(form, RunRecord)) == repr(record)  # NaN is not equal to itself


def test_what_is_missing_has_its_default_and_what_is_unknown_is_left_out() -> None:
    short = {"name": "w", "parts": [], "ends": [1, 2], "later": 1}
    assert from_json_form(short, Whole) == Whole("w", (), (1, 2.0))
    with pytest.raises(ValueError, match="Whole has no later"):
        from_json_form(short, Whole, exact=True)
    with pytest.raises(ValueError, match="Part has no later"):
        from_json_form({**FORM, "best": {"size": 1, "later": 1}}, Whole, exact=True)


@pytest.mark.parametrize(
    "change",
    [{"parts": "w"}, {"parts": {}}, {"parts": [3]}, {"parts": [{}]}, {"ends": [1]}, {"ends": [1, 2, 3]},
     {"best": []}, {"best": {"size": "much"}}, {"best": {"size": None}}, {"by_colour": []},
     {"by_colour": {"blue": []}}, {"best": {"size": 1, "colour": "blue"}}],
)  # fmt: skip
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        from_json_form({**FORM, **change}, Whole)


def test_a_type_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        to_json_form(Strange({"a"}))
