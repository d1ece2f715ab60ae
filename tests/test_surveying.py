"""One model under two real versions: converted once, a folder for each, and a version that cannot be tested."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_litert import bisection, cli, run_folder, surveying
from bisect_litert.errors import ConversionError, ExitCode
from bisect_litert.record import NO_CONTROL, Cause, RunRecord
from bisect_litert.request import BisectRequest, Interrupted
from bisect_litert.runtime_survey import Answer
from bisect_litert.runtimes import Runtime
from bisect_litert.subjects.torch_subject import TorchSubject

MODEL = textwrap.dedent(
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
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), Table(), torch.nn.Linear(16, 16))
    inputs = torch.randn(4, 16)
    """
)
HERE = Runtime("9.9.9", sys.executable, "here")  # sorts last


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def test_two_versions_side_by_side(
    model: str,
    tmp_path: Path,
    interpreter: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    interpreter("2.1.3")
    conversions = []
    made = TorchSubject.graph
    monkeypatch.setattr(TorchSubject, "graph", lambda *a: conversions.append(a) or made(*a))
    out = tmp_path / "out"
    words = [model, "--runtime", sys.executable, "--runtime", "2.1.3", "--out", str(out), "-q"]
    code = cli.main(words)
    text = capsys.readouterr().out
    old = RunRecord.load(out / "2.1.3")
    if old.target != "gpu":
        pytest.skip("no GPU here")
    assert code == ExitCode.DIVERGED
    assert len(conversions) == 1

    data = json.loads((out / "runtimes.json").read_text())
    first, second = data["rows"]
    assert first["version"] == "2.1.3"  # the older one leads, whatever the order they were asked for in
    assert [r["answer"] for r in data["rows"]] == ["wrong", "wrong"]
    assert [(r["cause"], r["block"]) for r in data["rows"]] == [("wrong-kernel", "1")] * 2
    assert first["lacks"] == ["fp32", "switches"]
    assert second["lacks"] == []
    assert data["sentence"] == "Wrong in every version."
    assert data["sentence"] in text
    assert "[2.1.3](2.1.3/report.md)" in (out / "runtimes.md").read_text()

    # Each run is whole, says what ran it, and what could not be told there.
    new = RunRecord.load(out / second["folder"])
    assert old.environment["device ai-edge-litert"] == "2.1.3"
    assert new.environment["device ai-edge-litert"] == second["version"]
    assert (old.culprits[0].kind, new.culprits[0].kind) == (NO_CONTROL, "")
    assert any("no option for fp32 on the GPU" in note for note in old.verdict.notes)
    assert not any("no option for fp32" in note for note in new.verdict.notes)
    assert {r.name: r.status for r in old.runs}["gpu-fp32"] == "skipped"
    assert {r.name: r.status for r in new.runs}["gpu-fp32"] == "ok"
    assert (out / "2.1.3" / "report.md").is_file()

    # Again with --force and one version: the other one's files are not taken for this run's.
    assert cli.main([model, "--runtime", "2.1.3", "--out", str(out), "-q", "--force"]) == ExitCode.DIVERGED
    assert RunRecord.load(out).environment["device ai-edge-litert"] == "2.1.3"
    assert not (out / "runtimes.json").exists()
    assert not (out / second["folder"] / "run.json").exists()


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
        assert last.answer is Answer.WRONG
        assert surveying.survey_exit_code(found) is ExitCode.DIVERGED


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


def test_stopping_keeps_the_versions_that_are_done(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[RunRecord] = []
    import sample_record

    def one(subject: object, request: BisectRequest, on_progress: object) -> RunRecord:
        assert request.out is not None
        run_folder.create(request.out, "m", request.force)
        if done:
            raise Interrupted(sample_record.overflow())
        done.append(sample_record.overflow())
        return done[0]

    monkeypatch.setattr(bisection, "bisect_subject", one)
    with pytest.raises(Interrupted):
        surveying.run_survey(BisectRequest(model, out=tmp_path / "out"), [HERE, HERE], lambda _: None)
    data = json.loads((tmp_path / "out" / "runtimes.json").read_text())
    assert data["interrupted"] is True
    assert [r["version"] for r in data["rows"]] == ["9.9.9"]


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
    monkeypatch.setattr(bisection, "load_subject", lambda *_: pytest.fail("the model was loaded"))
    assert cli.main([model, "--runtime", "no-such-python"]) == ExitCode.USAGE
    assert "neither a version of ai-edge-litert nor a Python interpreter" in capsys.readouterr().err
