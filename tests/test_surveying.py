"""One model under two real versions: converted once, a folder for each, and a version that cannot be tested."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sample_record

from bisect_litert import cli, entrances
from bisect_litert.errors import ConversionError, ExitCode, RunFolderError
from bisect_litert.record import RunRecord
from bisect_litert.records import run_folder
from bisect_litert.records.runtime_survey import Answer
from bisect_litert.reports import write_all
from bisect_litert.reports.outcome import exit_code
from bisect_litert.request import BisectRequest, Interrupted
from bisect_litert.subjects.torch_subject import TorchSubject
from bisect_litert.versions import surveying
from bisect_litert.versions.runtimes import Runtime
from bisect_litert.vocabulary import NO_CONTROL, Cause

ALIASED = Path(__file__).parent.parent / "examples" / "aliased_output.py"
TABLE = textwrap.dedent(
    """
    import torch

    class Table(torch.nn.Module):
        '''Adds a constant of the input's rank, of which the delegate reads the first row only.'''

        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.linspace(-2, 2, 64).reshape(4, 16).clone())

        def forward(self, x):
            return torch.tanh(x + self.table)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Identity(), Table())
    inputs = torch.randn(4, 16)
    """
)
HERE = Runtime("9.9.9", sys.executable, "here")  # sorts last


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(ALIASED.read_text(encoding="utf-8"), encoding="utf-8")
    return str(path)


def test_since_when_it_is_right(
    model: str,
    tmp_path: Path,
    interpreter: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for version in ("2.1.3", "2.1.6"):
        interpreter(version)
    conversions = []
    made = TorchSubject.graph
    monkeypatch.setattr(TorchSubject, "graph", lambda *a: conversions.append(a) or made(*a))
    out = tmp_path / "out"
    # The older one leads, whatever the order they were asked for in.
    code = cli.main([model, "--runtime", "2.1.6", "--runtime", "2.1.3", "--out", str(out), "-q"])
    text = capsys.readouterr().out
    old, new = RunRecord.load(out / "2.1.3"), RunRecord.load(out / "2.1.6")
    if old.target != "gpu":
        pytest.skip("no GPU here")
    assert code == ExitCode.DIVERGED
    assert len(conversions) == 1

    data = json.loads((out / "runtimes.json").read_text())
    assert [(r["version"], r["answer"], r["cause"], r["block"]) for r in data["rows"]] == [
        ("2.1.3", "wrong", "aliased-output", "first"),
        ("2.1.6", "right", "none", ""),
    ]
    assert [r["lacks"] for r in data["rows"]] == [["fp32", "switches"], []]
    assert data["sentence"] == "Wrong up to 2.1.3, right since 2.1.6."
    assert data["sentence"] in text
    assert "[2.1.3](2.1.3/report.md)" in (out / "runtimes.md").read_text()
    # Each run is whole and says what ran it.
    for version, record in (("2.1.3", old), ("2.1.6", new)):
        assert record.environment["device ai-edge-litert"] == version
        assert (out / version / "report.md").is_file()


def test_a_wrong_kernel_where_there_is_no_fp32_control(tmp_path: Path, interpreter: Callable[[str], str]) -> None:
    path = tmp_path / "table.py"
    path.write_text(TABLE)
    request = BisectRequest(str(path), out=tmp_path / "run", python=interpreter("2.1.3"))
    record = entrances.run_bisection(request, lambda _: None)
    if record.target != "gpu":
        pytest.skip("no GPU here")
    (culprit,) = record.culprits
    assert (culprit.block, culprit.cause, culprit.kind) == ("1", Cause.WRONG_KERNEL, NO_CONTROL)
    assert any("no option for fp32 on the GPU" in note for note in record.verdict.notes)
    assert {r.name: r.status for r in record.runs}["gpu-fp32"] == "skipped"
    assert record.environment["device lacks"] == "fp32, switches"
    # There is a GPU, and what is asked of it cannot be had: no run that stands in could answer that.
    record = entrances.run_bisection(replace(request, fp32=True, out=tmp_path / "exact"), lambda _: None)
    assert (record.target, record.verdict.cause, exit_code(record)) == ("gpu-fp32", Cause.CANNOT_TEST, 125)
    assert "ai-edge-litert 2.1.3 has no option for fp32 on the GPU" in record.verdict.summary


def test_a_version_that_cannot_be_tested_is_a_row(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = tmp_path / "python"
    dead.write_text("#!/bin/sh\nexit 3\n")
    dead.chmod(0o755)
    runtimes = [HERE, Runtime("1.0.0", str(dead), "dead"), Runtime("1.0.0", str(dead), "dead too")]
    request = BisectRequest(model, out=tmp_path / "out")
    seen: list[str] = []
    found = surveying.run_survey(request, runtimes, lambda _: None, lambda row: seen.append(row.version))
    assert seen == ["1.0.0", "1.0.0", "9.9.9"]
    first, second, last = found.rows
    assert (first.answer, first.folder, second.folder) == (Answer.UNKNOWN, "1.0.0", "1.0.0-2")
    assert "before its first job" in first.summary
    assert RunRecord.load(tmp_path / "out" / "1.0.0").verdict.cause is Cause.CANNOT_TEST
    if last.answer is Answer.UNKNOWN:
        assert surveying.survey_exit_code(found) is ExitCode.CANNOT_TEST
    else:
        assert last.answer is Answer.RIGHT
        assert surveying.survey_exit_code(found) is ExitCode.OK


def test_a_model_that_cannot_be_tested_anywhere_is_an_error_at_once(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        tries.append(1)
        raise ConversionError("no.", hint="yes.")

    tries: list[int] = []
    monkeypatch.setattr(TorchSubject, "graph", refuse)
    with pytest.raises(ConversionError):
        surveying.run_survey(BisectRequest(model, out=tmp_path / "out"), [HERE, HERE], lambda _: None)
    assert tries == [1]


def test_emulation_is_no_answer_for_a_version(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = sample_record.overflow()
    note = "ai-edge-litert 2.1.0 has no GPU accelerator. The emulated fp16 run stands in for the GPU."
    emulated = replace(
        emulated,
        target="emulated fp16, no GPU",
        verdict=replace(emulated.verdict, notes=(note,)),
        environment={**emulated.environment, "device lacks": "gpu, fp32"},
    )
    monkeypatch.setattr(entrances, "bisect_subject", lambda *_: emulated)
    found = surveying.run_survey(BisectRequest(model, out=tmp_path / "out"), [HERE], lambda _: None)
    (row,) = found.rows
    assert emulated.verdict.diverged
    assert (row.answer, row.block, row.lacks) == (Answer.UNKNOWN, "", ("gpu", "fp32"))
    assert row.summary == "ai-edge-litert 2.1.0 has no GPU accelerator."
    assert surveying.survey_exit_code(found) is ExitCode.CANNOT_TEST


def test_stopping_keeps_the_versions_that_are_done(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[RunRecord] = []

    def one(subject: object, request: BisectRequest, on_progress: object) -> RunRecord:
        assert request.out is not None
        run_folder.create(request.out, "m", request.force)
        if done:
            raise Interrupted(sample_record.overflow())
        done.append(sample_record.overflow())
        return done[0]

    monkeypatch.setattr(entrances, "bisect_subject", one)
    with pytest.raises(Interrupted):
        surveying.run_survey(BisectRequest(model, out=tmp_path / "out"), [HERE, HERE], lambda _: None)
    data = json.loads((tmp_path / "out" / "runtimes.json").read_text())
    assert data["interrupted"] is True
    assert [r["version"] for r in data["rows"]] == ["9.9.9"]


def test_force_replaces_the_runs_of_an_earlier_survey_and_nothing_else(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(subject: object, request: BisectRequest, on_progress: object) -> RunRecord:
        assert request.out is not None
        folder = run_folder.create(request.out, "m", request.force)
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / "gpu.log").write_text("")
        return write_all(sample_record.overflow(), folder)

    monkeypatch.setattr(entrances, "bisect_subject", one)
    out = tmp_path / "out"
    old, new = Runtime("1.0.0", "old", "old"), Runtime("2.0.0", "new", "new")
    surveying.run_survey(BisectRequest(model, out=out), [old, new], lambda _: None)
    (out / "2.0.0" / "mine.txt").write_text("")
    with pytest.raises(RunFolderError, match="holds an earlier run"):
        surveying.run_survey(BisectRequest(model, out=out), [new], lambda _: None)
    found = surveying.run_survey(BisectRequest(model, out=out, force=True), [new], lambda _: None)
    assert [row.version for row in found.rows] == ["2.0.0"]
    assert not (out / "1.0.0").exists()
    assert (out / "2.0.0" / "mine.txt").exists()
    surveying.run_survey(BisectRequest(model, out=out, force=True), [old, new], lambda _: None)
    assert RunRecord.load(out / "1.0.0").culprits


@pytest.mark.parametrize("extra", [["--no-gpu"], ["--predict"], ["--view", "--runtime", sys.executable]])
def test_what_compares_no_gpu_results_is_refused(
    model: str, extra: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([model, "--runtime", sys.executable, *extra]) == ExitCode.USAGE
    assert capsys.readouterr().err


def test_a_version_there_is_not_stops_before_anything_slow(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entrances, "load_subject", lambda *_: pytest.fail("the model was loaded"))
    assert cli.main([model, "--runtime", "no-such-python"]) == ExitCode.USAGE
    assert "neither a version of ai-edge-litert nor a Python interpreter" in capsys.readouterr().err
