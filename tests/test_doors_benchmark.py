"""The table of benchmarks/doors.py, on outcomes written by hand; how they come about is zoo.py's business."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.doors import Door, says, table, wants
from benchmarks.zoo import Outcome

ROOT = Path(__file__).parents[1]
CASES = {
    "fine": {"block": None, "cause": "none"},
    "two": {
        "block": "enc.b1",
        "cause": "overflow",
        "blocks": ["enc.b1", "enc.b3"],
        "causes": ["overflow", "wrong-kernel"],
    },
}
BOTH = Outcome("overflow", True, (("enc.b1", "overflow"), ("enc.b3", "wrong-kernel")), "Both.")
ONE = Outcome("overflow", True, (("enc.b1", "overflow"),), "Only one.")
FINE = Outcome("none", False, (), "Fine.")


def test_a_door_that_is_not_as_wanted_says_what_it_said() -> None:
    found = [
        Door("model", "model.py", "bisect-litert model.py"),
        Door("file", ".tflite alone", "bisect-litert m.tflite"),
    ]
    outcomes = {
        "model": {"fine": FINE, "two": BOTH},
        "file": {"fine": Outcome(exit_code=125, sentence="No input."), "two": ONE},
    }
    lines = table(CASES, found, outcomes, {"model": 3.4, "file": 9.6}).splitlines()
    assert lines[0] == "| case | wanted | model.py | .tflite alone |"
    assert "| `fine` | none | ✓ | error 125 |" in lines
    assert "| `two` | overflow in enc.b1, wrong-kernel in enc.b3 | ✓ | overflow in enc.b1 |" in lines
    assert "| model.py | `bisect-litert model.py` | 2 | 2 | 2 | 0 | 3 |" in lines
    assert "| .tflite alone | `bisect-litert m.tflite` | 2 | 0 | 0 | 0 | 10 |" in lines
    assert lines[-2:] == ["- `fine`, .tflite alone: No input.", "- `two`, .tflite alone: Only one."]


def test_a_case_that_a_door_was_not_given_is_left_open() -> None:
    door = Door("model", "model.py", "c")
    text = table(
        CASES, [door, Door("2.1.3", "2.1.3", "c")], {"model": {"two": BOTH}, "2.1.3": {}}, {"model": 1, "2.1.3": 0}
    )
    assert "`fine`" not in text
    assert "| ✓ |  |" in text
    assert "not as wanted" not in text


def test_words() -> None:
    assert says(BOTH) == wants(CASES["two"]) == "overflow in enc.b1, wrong-kernel in enc.b3"
    assert says(FINE) == wants(CASES["fine"]) == "none"


def test_it_is_a_command() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "doors.py"), str(ROOT / "docs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no cases.json" in done.stderr
