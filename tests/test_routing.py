"""GPU jobs on one side, the reference on the other, both at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bisect_litert.devices.jobs import Job
from bisect_litert.devices.machines import open_runner
from bisect_litert.devices.routing import RoutedRunner
from bisect_litert.devices.runners import Runner
from bisect_litert.errors import RunnerError
from bisect_litert.request import BisectRequest

DATA = Path(__file__).parent / "data"
FAKE = (sys.executable, str(DATA / "fake_worker.py"))
X = np.arange(24, dtype=np.float32).reshape(3, 8) / 10


def job(name: str, accelerator: str) -> Job:
    return Job(name, DATA / "mlp.tflite", accelerator, {"args_0": X})


def two(tmp_path: Path, limit: float = 30.0, target: tuple[str, ...] = FAKE) -> RoutedRunner:
    return RoutedRunner(Runner(tmp_path, limit, FAKE), Runner(tmp_path / "target", limit, target))


def test_gpu_jobs_go_to_the_target_and_answers_keep_their_order(tmp_path: Path) -> None:
    done: list[str] = []
    with two(tmp_path) as runner:
        kinds = ["gpu", "cpu", "interpreter", "gpu+cpu", "cpu"]
        results = runner.run([job(f"ok-{k}", kind) for k, kind in enumerate(kinds)], done.append)
        alone = runner.run([job("ok-5", "gpu")])
    assert list(results) == [f"ok-{k}" for k in range(5)]
    assert sorted(done) == sorted(results)
    pids = [float(results[f"ok-{k}"].outputs["y"][0]) for k in range(5)]
    assert pids[0] == pids[3] == float(alone["ok-5"].outputs["y"][0])
    assert pids[1] == pids[2] == pids[4] != pids[0]


def test_both_sides_work_at_once(tmp_path: Path) -> None:
    with two(tmp_path) as runner:
        runner.run([job("ok-1", "gpu"), job("ok-2", "cpu")])  # both workers are up
        start = time.monotonic()
        runner.run([job(f"slow-{k}", kind) for k, kind in enumerate(["gpu", "cpu"] * 2)])
    assert time.monotonic() - start < 2.2  # four jobs of 0.6 s


def test_a_death_on_one_side_is_no_business_of_the_other(tmp_path: Path) -> None:
    with two(tmp_path) as runner:
        results = runner.run([job("segv", "gpu"), job("ok-1", "cpu"), job("ok-2", "gpu"), job("abort", "cpu")])
    assert [result.status for result in results.values()] == ["crashed", "ok", "ok", "crashed"]


def test_a_target_that_does_not_start_is_an_error_and_the_local_side_stops(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="No module named"), two(tmp_path, target=(*FAKE, "--broken")) as runner:
        runner.run([job("ok-1", "gpu"), job("hang", "cpu")])


def test_ctrl_c_ends_both_sides(tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = two(tmp_path)
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), runner:
        runner.run([job("hang-1", "gpu"), job("hang-2", "cpu")])
    assert time.monotonic() - start < 10
    pids = [int(file.read_text()) for file in tmp_path.rglob("grandchild")]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_another_interpreter_runs_the_gpu_jobs(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/used\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    with open_runner(tmp_path / "work", BisectRequest("model.py", python=str(other))) as runner:
        results = runner.run([job("cpu", "cpu"), job("gpu", "gpu")])
    assert results["cpu"].ok
    assert (tmp_path / "used").read_text().strip().endswith("worker.py --serve")
    assert "target" in results["gpu"].log_path.parts
    assert "target" not in results["cpu"].log_path.parts
