"""Any command as a runner: with commands that keep the contract, break it half-way, or not at all."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bisect_litert.devices import runners
from bisect_litert.devices.command_runner import CommandRunner, parse_command
from bisect_litert.devices.jobs import Job, JobResult
from bisect_litert.errors import RunnerError, UsageError

DATA = Path(__file__).parent / "data"
ODD = f"{sys.executable} {DATA / 'odd_command.py'}"
X = np.arange(24, dtype=np.float32).reshape(3, 8) / 10


def job(name: str, accelerator: str = "gpu") -> Job:
    return Job(name, DATA / "mlp.tflite", accelerator, {"args_0": X})


def ran(tmp_path: Path, mode: str, *names: str, limit: float = 30.0) -> dict[str, JobResult]:
    with CommandRunner(tmp_path, limit, parse_command(f"{ODD} {mode}")) as runner:
        return runner.run([job(name) for name in names])


def test_folders_are_the_last_arguments_or_stand_where_they_are_named() -> None:
    assert parse_command("run it") == ("run", "it", "{request}", "{response}")
    assert parse_command("sh -c 'cp {request} x; y {response}'") == ("sh", "-c", "cp {request} x; y {response}")
    for text, said in (("", "is empty"), ("'a", "cannot be read"), ("a {request}", "lacks {response}")):
        with pytest.raises(UsageError, match=said):
            parse_command(text)


@pytest.mark.parametrize("folders", ["", " {request} {response}"])
def test_our_own_worker_is_a_command(tmp_path: Path, folders: str) -> None:
    command = parse_command(f"{sys.executable} {runners.WORKER_FILE}{folders}")
    with CommandRunner(tmp_path, 60, command) as runner:
        first = runner.run([job("cpu", "cpu"), job("all", "interpreter")])
        again = runner.run([job("cpu", "cpu")])
    assert {result.status for result in (*first.values(), *again.values())} == {"ok"}
    np.testing.assert_array_equal(first["cpu"].outputs["output_0"], again["cpu"].outputs["output_0"])
    versions = first["cpu"].versions
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(versions) == {"ai-edge-litert", "python", "platform", "host"}


def test_a_job_that_kills_the_far_worker_is_to_blame_and_the_rest_runs_again(tmp_path: Path) -> None:
    results = ran(tmp_path, "brings", "ok-1", "segv", "ok-2")
    assert [result.status for result in results.values()] == ["ok", "crashed", "ok"]
    assert results["segv"].detail == "exit code 9: the device said something"
    assert results["segv"].log_text == "log of segv\n"


def test_answers_that_came_are_kept_when_the_command_is_killed(tmp_path: Path) -> None:
    results = ran(tmp_path, "half", "ok-1", "ok-2", "ok-3")
    assert {result.status for result in results.values()} == {"ok"}
    assert len(list((tmp_path / "requests").glob("0*"))) == 3  # one answer each


def test_a_command_that_brings_nothing_back_after_a_death_gets_the_jobs_one_by_one(tmp_path: Path) -> None:
    results = ran(tmp_path, "all-or-nothing", "ok-1", "segv", "ok-2")
    assert [result.status for result in results.values()] == ["ok", "crashed", "ok"]
    assert results["segv"].detail == "exit code 7: the device said something"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("nothing", "left no answer: exit code 0"),
        ("refuses", "left no answer: exit code 1: no such device"),
        ("all-or-nothing", "left no answer: exit code 7: the device said something"),
    ],
)
def test_a_command_that_never_gave_an_answer_is_no_verdict(tmp_path: Path, mode: str, said: str) -> None:
    with pytest.raises(RunnerError, match=said) as info:
        ran(tmp_path, mode, "segv", "ok-1")
    assert "response.json" in info.value.hint


def test_garbage_is_an_answer_that_cannot_be_used(tmp_path: Path) -> None:
    results = ran(tmp_path, "garbage", "ok-1", "ok-2")
    assert {result.status for result in results.values()} == {"failed"}
    assert "cannot be used" in results["ok-1"].detail


def test_a_missing_answer_of_a_command_that_ended_well_is_a_failed_job(tmp_path: Path) -> None:
    results = ran(tmp_path, "brings", "ok-1", "silent", "ok-2")
    assert [result.status for result in results.values()] == ["ok", "failed", "ok"]
    assert results["silent"].detail == "the worker gave no answer for this job"


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(RunnerError, match="had left nothing when its time was over"):
        ran(tmp_path, "hangs", "ok-1", limit=0.6)
    assert time.monotonic() - start < 5


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    runner = CommandRunner(tmp_path, 30, parse_command("/nowhere/run"))
    with pytest.raises(RunnerError, match="'/nowhere/run' cannot be started: No such file"), runner:
        runner.run([job("ok")])
