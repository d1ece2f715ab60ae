"""JUnit, SARIF and CSV of a run, as the tools that read them want them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
import sample_record
import sample_run

from bisect_litert.measuring.metrics import compare
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import accuracy_csv, junit, overlay, sarif
from bisect_litert.reports.outcome import exit_code

RECORDS = [sample_record.overflow(), sample_record.healthy(), sample_record.wrong_kernel(), sample_record.cannot_test()]


def located(record: RunRecord) -> RunRecord:
    ops = (sample_run.op(3, "ADD", 4.0), sample_run.op(5, "MUL", 7e4, guilty=True))
    culprit: Culprit = replace(record.culprits[0], source="model.py:41", op=5, ops=ops)
    return replace(record, culprits=(culprit,))


@pytest.mark.parametrize("record", RECORDS)
def test_junit_counts_what_it_holds(record: RunRecord) -> None:
    suite = Xml.fromstring(junit.render(record).partition("\n")[2]).find("testsuite")
    assert suite is not None
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(name, "")) == len(list(suite.iter(tag)))
    blamed = {c.get("name") for c in suite.iter("testcase") if c.find("failure") is not None}
    assert blamed == {c.block for c in record.culprits}
    assert (suite.get("errors") == "1") == (exit_code(record) == 125)


def test_junit_can_be_parsed_whatever_a_name_holds() -> None:
    block = replace(sample_record.healthy().blocks[0], name='a<b>&"\x1b[31m\ud800\uffff')
    text = junit.render(replace(sample_record.healthy(), blocks=(block,)))
    assert Xml.fromstring(text.encode("utf-8")).find("testsuite/testcase") is not None


def test_sarif_puts_the_culprit_at_its_line() -> None:
    run = json.loads(sarif.render(located(sample_record.overflow())))["runs"][0]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("model.py", 41)
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert result["level"] == "error"


def test_sarif_of_a_healthy_and_of_an_untested_run() -> None:
    healthy = json.loads(sarif.render(sample_record.healthy()))["runs"][0]
    assert healthy["results"] == []
    assert healthy["invocations"][0]["executionSuccessful"] is True
    untested = json.loads(sarif.render(sample_record.cannot_test()))["runs"][0]
    assert untested["invocations"][0]["executionSuccessful"] is False


def test_csv_has_the_columns_and_leaves_unknown_cells_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(accuracy_csv.render(located(sample_record.overflow())))))
    assert [(row["Index"], row["Op Code"], row["Status"]) for row in rows] == [
        ("3", "ADD", "OK"),
        ("5", "MUL", "REGRESSION"),
    ]
    assert rows[1]["NaN"] == "Y"
    assert rows[0]["MSE"] == ""
    assert rows[0]["Max Diff"] != ""


def test_cosine_follows_from_scale_and_error() -> None:
    rng = np.random.default_rng(0)
    r, t = rng.standard_normal(500), rng.standard_normal(500) + 0.5
    wanted = float(r @ t / np.linalg.norm(r) / np.linalg.norm(t))
    assert accuracy_csv.cosine(compare(reference=r, target=t)) == pytest.approx(wanted)


def test_overlays_are_keyed_by_tensor_and_hold_numbers_only_where_there_are_some() -> None:
    record = located(sample_record.overflow())
    guilty, other = record.culprits[0].ops[1], record.culprits[0].ops[0]
    broken = replace(other, local=replace(sample_record.comparison(0.1), relative_l2=float("nan")))
    record = replace(record, culprits=(replace(record.culprits[0], ops=(broken, guilty)),))
    record = replace(record, environment={**record.environment, "device": "phone-7"})
    numbers = json.loads(overlay.relative_error(record))["results"]
    for document in (overlay.relative_error(record), overlay.verdicts(record)):
        assert json.loads(document)["name"].endswith(f", {record.placement.adapter} (phone-7)")
    words = json.loads(overlay.verdicts(record))["results"]
    assert numbers[guilty.tensor]["value"] == pytest.approx(guilty.local.relative_l2 if guilty.local else None)
    assert other.tensor not in numbers
    assert words[guilty.tensor]["value"] == "guilty op: overflow"
    taps = {tap.tensor for block in record.blocks for tap in block.taps if tap.tensor}
    assert set(words) == taps | {guilty.tensor, other.tensor}
