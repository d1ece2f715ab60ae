"""How benchmarks/zoo.py scores, on outcomes written by hand, and that a dying process costs one case only."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_benchmark", ROOT / "benchmarks" / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


zoo = _load()


def case(cause: str, block: str | None = None, **more: Any) -> dict[str, Any]:
    return {"cause": cause, "block": block, **more}


def verdict(cause: str, *culprits: tuple[str, str]) -> Any:
    return zoo.Outcome(cause=cause, diverged=cause != "none", culprits=culprits, sentence="Said so.")


def error(exit_code: int, sentence: str = "The model could not be converted.") -> Any:
    return zoo.Outcome(exit_code=exit_code, sentence=sentence)


OVERFLOW_B3 = verdict("overflow", ("enc.b3", "overflow"))
TWO = {"blocks": ["enc.b1", "enc.b3"], "causes": ["overflow", "wrong-kernel"]}


@pytest.mark.parametrize(
    ("wanted", "outcome", "expected"),
    [
        pytest.param(case("overflow", "enc.b3"), OVERFLOW_B3, (True, True, False), id="as-wanted"),
        pytest.param(case("overflow", "enc.b2"), OVERFLOW_B3, (False, True, False), id="other-block"),
        pytest.param(case("conversion", "enc.b3"), OVERFLOW_B3, (True, False, False), id="other-cause"),
        pytest.param(case("conversion", "enc.b3", also=["overflow"]), OVERFLOW_B3, (True, True, False), id="also"),
        pytest.param(case("overflow", "enc.b3"), verdict("overflow"), (False, True, False), id="no-culprit"),
        pytest.param(
            case("overflow", "enc.b3"),
            verdict("overflow", ("enc.b2", "overflow"), ("enc.b3", "overflow")),
            (False, True, False),
            id="only-the-first-culprit-counts",
        ),
        pytest.param(case("overflow", "enc.b3"), verdict("none"), (False, False, False), id="fault-not-seen"),
        pytest.param(case("overflow", "enc.b3"), error(125), (False, False, False), id="error-instead-of-verdict"),
        pytest.param(case("none"), verdict("none"), (True, True, False), id="healthy"),
        pytest.param(case("none"), OVERFLOW_B3, (False, False, True), id="false-alarm"),
        pytest.param(case("none", also=["overflow"]), OVERFLOW_B3, (True, True, False), id="excused-alarm"),
        pytest.param(case("none", also=["crash"]), OVERFLOW_B3, (False, False, True), id="not-excused-alarm"),
        pytest.param(case("none"), error(255), (False, False, False), id="healthy-but-error"),
        pytest.param(
            case("precision-compounding"),
            verdict("precision-compounding", ("enc.b31", "precision-compounding")),
            (True, True, False),
            id="compounding-in-any-block",
        ),
        pytest.param(case("precision-compounding"), verdict("none"), (True, False, False), id="compounding-not-seen"),
        pytest.param(
            case("overflow", "enc.b1", **TWO),
            verdict("overflow", ("enc.b1", "overflow"), ("enc.b2", "overflow"), ("enc.b3", "wrong-kernel")),
            (True, True, False),
            id="both-in-order",
        ),
        pytest.param(
            case("overflow", "enc.b1", **TWO),
            verdict("overflow", ("enc.b1", "overflow"), ("enc.b3", "overflow")),
            (True, False, False),
            id="second-cause-wrong",
        ),
        pytest.param(
            case("overflow", "enc.b1", **TWO),
            verdict("overflow", ("enc.b1", "overflow")),
            (False, False, False),
            id="second-fault-missing",
        ),
        pytest.param(
            case("overflow", "enc.b1", **TWO),
            verdict("overflow", ("enc.b3", "wrong-kernel"), ("enc.b1", "overflow")),
            (False, False, False),
            id="wrong-order",
        ),
        pytest.param(case("cannot-test"), error(125), (True, True, False), id="refused"),
        pytest.param(case("cannot-test"), error(2), (True, True, False), id="refused-as-usage"),
        pytest.param(case("cannot-test"), error(255), (False, False, False), id="refused-by-a-bug"),
        pytest.param(case("cannot-test"), error(125, "One.\nTwo."), (False, False, False), id="two-lines"),
        pytest.param(case("cannot-test"), error(125, ""), (False, False, False), id="no-sentence"),
        pytest.param(case("cannot-test"), verdict("none"), (False, False, False), id="verdict-instead-of-refusal"),
    ],
)
def test_score(wanted: dict[str, Any], outcome: Any, expected: tuple[bool, bool, bool]) -> None:
    result = zoo.score(wanted, outcome)
    assert (result.block, result.cause, result.false_alarm) == expected


def test_the_summary_counts_what_has_an_outcome_and_lists_the_misses() -> None:
    cases = {"a": case("overflow", "enc.b3"), "b": case("none"), "c": case("none"), "never-run": case("none")}
    outcomes = {"a": OVERFLOW_B3, "b": OVERFLOW_B3, "c": verdict("none")}
    summary = zoo.summarise(cases, outcomes, seconds=12.34)
    counts = {key: summary[key] for key in ("cases", "blocks_right", "causes_right", "false_alarms", "seconds")}
    assert counts == {"cases": 3, "blocks_right": 2, "causes_right": 2, "false_alarms": 1, "seconds": 12.3}
    (miss,) = summary["misses"]
    assert (miss["name"], miss["wanted_cause"], miss["got_cause"], miss["sentence"]) == (
        "b",
        "none",
        "overflow",
        "Said so.",
    )
    assert "miss b: wanted none in None, got overflow in ['enc.b3']" in zoo.report(summary)


STUB = """
import os, time
from types import SimpleNamespace
from bisect_litert.errors import BisectError

def bisect(module, inputs, *, blocks, out):
    assert blocks == "enc.*" and inputs == ("inputs",)
    if module == "dies":
        os.abort()
    if module == "hangs":
        time.sleep(60)
    if module == "raises":
        raise ValueError("a bug")
    if module == "refuses":
        raise BisectError
    culprits = [SimpleNamespace(block="enc.b3@2", cause="overflow")] if module == "overflow" else []
    cause = "overflow" if culprits else "none"
    verdict = SimpleNamespace(cause=cause, diverged=bool(culprits), summary="Said so.")
    return SimpleNamespace(verdict=verdict, culprits=culprits, target="gpu")
"""
STUB_ERRORS = """
class BisectError(Exception):
    exit_code, message = 125, "Cannot convert."
"""


def test_a_dying_or_hanging_process_costs_one_case_only(tmp_path: Path) -> None:
    """The product is replaced by a stand-in that dies, hangs or raises as the case's name says."""
    package = tmp_path / "stub" / "bisect_litert"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STUB)
    (package / "errors.py").write_text(STUB_ERRORS)
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / "zoo.py").write_text("def load(name):\n    return name, ('inputs',)\n")
    wanted = {
        "overflow": case("overflow", "enc.b3"),
        "dies": case("none"),
        "hangs": case("none"),
        "raises": case("none"),
        "refuses": case("cannot-test"),
        "healthy": case("none"),
    }
    (folder / "cases.json").write_text(json.dumps(wanted))

    out = tmp_path / "out.json"
    command = [sys.executable, ROOT / "benchmarks" / "zoo.py", folder, "--jobs", "1", "--limit", "3", "--json", out]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "stub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(out.read_text())
    right = {r["name"] for r in summary["results"] if r["block_right"] and r["cause_right"]}
    assert right == {"overflow", "refuses", "healthy"}
    said = {m["name"]: m["sentence"] for m in summary["misses"]}
    assert said == {
        "dies": "the process died with exit code -6",
        "hangs": "no answer within 3 s",
        "raises": "ValueError: a bug",
    }
