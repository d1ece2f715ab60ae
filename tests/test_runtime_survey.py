"""Since when it is right: the sentence over versions, and the table in every form."""

from __future__ import annotations

import io
import json
from math import nan

import pytest
from rich.console import Console

from bisect_litert.records.runtime_survey import Answer, RuntimeRow, RuntimeSurvey
from bisect_litert.reports import runtime_table

RIGHT, WRONG, UNKNOWN = Answer.RIGHT, Answer.WRONG, Answer.UNKNOWN


def row(version: str, answer: Answer, block: str = "norm", cause: str = "overflow", **more: object) -> RuntimeRow:
    wrong = answer is WRONG
    values: dict[str, object] = {
        "version": version,
        "answer": answer,
        "cause": cause if wrong else "none",
        "block": block if wrong else "",
        "headline": {WRONG: f"{cause} in {block}", RIGHT: "no divergence", UNKNOWN: "cannot test"}[answer],
        "summary": f"What {version} does.",
        "error": 0.25 if wrong else 3e-4,
        "lacks": (),
        "adapter": "a GPU",
        "folder": version,
        "seconds": 1.0,
        **more,
    }
    return RuntimeRow(**values)  # type: ignore[arg-type]


def survey(*answers: Answer) -> RuntimeSurvey:
    versions = ("2.1.3", "2.1.5", "2.1.6", "2.2.0", "2.3.0")
    return RuntimeSurvey("m.py", tuple(row(v, a) for v, a in zip(versions, answers, strict=False)))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((WRONG, WRONG, RIGHT, RIGHT), "Wrong up to 2.1.5, right since 2.1.6."),
        ((RIGHT, WRONG), "Right up to 2.1.3, wrong since 2.1.5."),
        ((RIGHT, RIGHT), "Right in every version."),
        ((WRONG,), "Wrong in 2.1.3."),
        ((WRONG, RIGHT, WRONG), "Wrong in 2.1.3, right in 2.1.5, wrong in 2.1.6."),
        ((RIGHT, WRONG, WRONG, RIGHT), "Right in 2.1.3, wrong in 2.1.5 and 2.1.6, right in 2.2.0."),
        ((UNKNOWN, WRONG, RIGHT), "Wrong up to 2.1.5, right since 2.1.6. Not tested: 2.1.3."),
        ((UNKNOWN, RIGHT, RIGHT), "Right in every version that could be tested. Not tested: 2.1.3."),
        ((UNKNOWN, UNKNOWN), "No version could be tested."),
        ((), "No version could be tested."),
    ],
)
def test_since_when(answers: tuple[Answer, ...], said: str) -> None:
    assert survey(*answers).sentence() == said


def test_wrong_in_another_way_is_said() -> None:
    rows = (row("2.1.3", WRONG), row("2.1.6", WRONG), row("2.3.0", WRONG, cause="wrong-kernel", block="attention"))
    assert RuntimeSurvey("m.py", rows).sentence() == (
        "Wrong in every version. Not wrong in the same way: overflow in norm (2.1.3 and 2.1.6); wrong-kernel in "
        "attention (2.3.0)."
    )


def test_the_file_is_valid_json_with_a_nan_in_it() -> None:
    found = RuntimeSurvey("m.py", (row("2.1.3", WRONG, error=nan, lacks=("fp32",)),))
    data = json.loads(found.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert data["rows"][0]["error"] == "NaN"
    assert data["rows"][0]["answer"] == "wrong"
    assert data["rows"][0]["lacks"] == ["fp32"]
    assert data["sentence"] == found.sentence()


def test_the_table_on_a_terminal_and_in_markdown() -> None:
    found = RuntimeSurvey(
        "a|b.py",
        (
            row("2.1.0", UNKNOWN, summary="ai-edge-litert 2.1.0 has no GPU accelerator.", folder="", adapter=""),
            row("2.1.3", WRONG, error=nan, lacks=("fp32", "switches")),
            row("2.3.0", RIGHT),
        ),
    )
    console = Console(file=io.StringIO(), width=200)
    runtime_table.render(found, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2.1.0           unknown              -  cannot test: ai-edge-litert 2.1.0 has no GPU accelerator." in text
    assert "2.1.3           wrong       not finite  overflow in norm" in text
    assert "no fp32 on the GPU, switches that keep ops off the GPU" in text
    assert "2.3.0           right           3.0e-4  no divergence" in text
    assert "Wrong up to 2.1.3, right since 2.3.0. Not tested: 2.1.0." in text

    markdown = runtime_table.markdown(found)
    assert markdown.startswith("# a\\|b.py under 3 versions of ai-edge-litert\n")
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert table[3] == (
        "| [2.1.3](2.1.3/report.md) | wrong | not finite | overflow in norm | fp32 on the GPU, switches that keep ops "
        "off the GPU |"
    )
    assert table[2].startswith("| 2.1.0 | unknown | - | cannot test: ai-edge-litert 2.1.0 has no GPU accelerator. |")
    assert all(line.count("|") - line.count("\\|") == 6 for line in table)
