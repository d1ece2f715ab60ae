from __future__ import annotations

import json
from dataclasses import replace
from math import inf, isnan, nan

import pytest
import sample_record as sample
from rich.console import Console

from bisect_litert.record import Culprit, Placement, RunRecord
from bisect_litert.records.comparing import Change, compare_runs, headline
from bisect_litert.reports import diff as report
from bisect_litert.vocabulary import Cause


def record(levels: dict[str, float], culprits: dict[str, Cause] | None = None) -> RunRecord:
    rows = [sample.block(name, i, cumulative=sample.comparison(v)) for i, (name, v) in enumerate(levels.items())]
    found = [Culprit(name, cause, "", ("why",), "try") for name, cause in (culprits or {}).items()]
    verdict = sample.overflow().verdict if found else sample.healthy().verdict
    return sample.record(rows, replace(verdict, cause=found[0].cause) if found else verdict, found)


def changes(before: RunRecord, after: RunRecord) -> dict[str, str]:
    return {row.name: row.change.value for row in compare_runs(before=before, after=after).blocks}


def test_a_run_is_the_same_as_itself() -> None:
    diff = compare_runs(before=sample.overflow(), after=sample.overflow())
    assert {row.change for row in diff.blocks} == {Change.SAME, Change.KEPT}
    assert (diff.facts, diff.fixed, diff.new, diff.moved, diff.gone) == ((), (), (), (), ())
    assert not diff.worse
    assert headline(diff) == "The verdict is overflow in both: 1 culprit still there."


def test_fixed_and_new_culprits() -> None:
    a = record({"x": 3e-4, "y": 0.5, "z": 0.5}, {"y": Cause.OVERFLOW})
    b = record({"x": 0.5, "y": 0.5, "z": 0.5}, {"x": Cause.WRONG_KERNEL})
    diff = compare_runs(before=a, after=b)
    assert [c.block for c in diff.fixed] == ["y"]
    assert [c.block for c in diff.new] == ["x"]
    assert diff.moved == ()
    assert diff.worse
    assert changes(a, b) == {"x": "new culprit", "y": "fixed", "z": "same"}


def test_a_culprit_of_the_same_cause_moved() -> None:
    a = record({"x": 3e-4, "y": 0.5}, {"y": Cause.OVERFLOW})
    b = record({"x": 0.5, "y": 0.5}, {"x": Cause.OVERFLOW})
    diff = compare_runs(before=a, after=b)
    assert [(p.block, q.block) for p, q in diff.moved] == [("y", "x")]
    assert (diff.fixed, diff.new) == ((), ())


def test_nobody_can_say_which_of_two_moved_where() -> None:
    a = record({"x": 0.5, "y": 0.5, "z": 0.5}, {"x": Cause.OVERFLOW, "y": Cause.OVERFLOW})
    b = record({"x": 0.5, "y": 0.5, "z": 0.5}, {"z": Cause.OVERFLOW})
    diff = compare_runs(before=a, after=b)
    assert diff.moved == ()
    assert [c.block for c in diff.fixed] == ["x", "y"]
    assert [c.block for c in diff.new] == ["z"]


def test_a_culprit_whose_block_is_gone_is_not_called_fixed() -> None:
    a = record({"x": 3e-4, "old": 0.5}, {"old": Cause.OVERFLOW})
    b = record({"x": 3e-4, "new": 3e-4})
    diff = compare_runs(before=a, after=b)
    assert diff.fixed == ()
    assert [c.block for c in diff.gone] == ["old"]
    assert [row.name for row in diff.unmatched] == ["old", "new"]


def test_blocks_without_a_partner_stand_where_they_stood() -> None:
    a = record({"p": 1e-4, "a": 1e-4, "q": 1e-4, "b": 1e-4, "r": 1e-4})
    b = record({"a": 1e-4, "n": 1e-4, "b": 1e-4})
    names = [row.name for row in compare_runs(before=a, after=b).blocks]
    assert names == ["p", "a", "q", "n", "b", "r"]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (1e-3, 1e-3, "same"),
        (1e-3, 1.9e-3, "same"),
        (1e-3, 2.1e-3, "worse"),
        (2.1e-3, 1e-3, "better"),
        (1e-7, 4e-4, "same"),  # both under half an fp16 unit
        (1e-7, 5e-3, "worse"),
        (inf, 1e-3, "better"),
        (1e-3, inf, "worse"),
        (inf, inf, "same"),
        (nan, 1e-3, "unknown"),
    ],
)
def test_an_error_is_worse_only_beyond_a_factor_of_two(before: float, after: float, change: str) -> None:
    assert changes(record({"x": before}), record({"x": after})) == {"x": change}


def test_something_not_finite_counts_as_infinitely_off() -> None:
    rows = [sample.block("x", 0, cumulative=sample.comparison(1e-3, nonfinite=5))]
    broken = sample.record(rows, sample.healthy().verdict)
    diff = compare_runs(before=record({"x": 1e-3}), after=broken)
    assert diff.blocks[0].cumulative == (1e-3, inf)
    assert diff.blocks[0].change is Change.WORSE


def test_an_emulated_run_is_read_by_its_own_numbers() -> None:
    diff = compare_runs(before=sample.overflow(), after=sample.emulated())
    assert not any(isnan(v) for row in diff.blocks for v in row.cumulative)
    assert ("target", "gpu", "emulated fp16, no GPU") in [(f.name, f.before, f.after) for f in diff.facts]


def test_what_else_differs_is_listed() -> None:
    a = sample.overflow()
    b = replace(
        a,
        model="other.py",
        environment={**a.environment, "torch": "2.14.0"},
        placement=Placement("NVIDIA H200", 74, 0, a.placement.line),
        settings=replace(a.settings, ratio_limit=20.0, blocks=()),
    )
    facts = {f.name: (f.before, f.after) for f in compare_runs(before=a, after=b).facts}
    assert facts == {
        "model": (a.model, "other.py"),
        "adapter": (a.placement.adapter, "NVIDIA H200"),
        "torch": ("2.13.0+cpu", "2.14.0"),
        "ratio limit": ("10", "20"),
        "blocks": ("enc.*", "default"),
    }


def text(before: RunRecord, after: RunRecord, **options: bool) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    report.render(compare_runs(before=before, after=after), console, **options)
    return console.export_text()


def test_the_text_names_each_culprit_and_folds_what_is_the_same() -> None:
    levels = {f"b{i}": 1e-3 for i in range(60)}
    a, b = record({**levels, "b7": 0.5}, {"b7": Cause.OVERFLOW}), record(levels)
    said = text(a, b)
    assert "fixed: b7 (overflow)" in said
    assert "… 59 blocks the same" in said
    assert "b59" not in said
    assert "b59" in text(a, b, verbose=True)


def test_runs_of_other_models_are_said_to_have_nothing_in_common() -> None:
    a, b = record({"x": 0.5}, {"x": Cause.OVERFLOW}), record({"y": 3e-4})
    assert "no block in common" in text(a, b)
    assert "no block in common" not in text(a, record({"x": 3e-4, "y": 3e-4}))


def test_json_and_markdown_hold_every_block() -> None:
    diff = compare_runs(before=sample.nan_metrics(), after=sample.wrong_kernel())
    data = json.loads(report.to_json(diff))
    assert len(data["blocks"]) == len(diff.blocks) == 8
    assert data["blocks"][0]["cumulative"][1] == "NaN"
    table = [line for line in report.markdown(diff).splitlines() if line.startswith("|")]
    assert len(table) == 2 + 8
    assert {line.replace("\\|", "").count("|") for line in table} == {7}
