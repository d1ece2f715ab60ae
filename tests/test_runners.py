"""The parent's side: with fake workers for every way to die, and with the real one."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bisect_litert.devices import jobs, request_folder, runners
from bisect_litert.devices.jobs import read_result
from bisect_litert.devices.runners import Job, JobResult, Runner
from bisect_litert.errors import RunnerError

DATA = Path(__file__).parent / "data"
FAKE = (sys.executable, str(DATA / "fake_worker.py"))
X = np.arange(24, dtype=np.float32).reshape(3, 8) / 10


def job(name: str, model: str = "mlp", accelerator: str = "cpu", **options: object) -> Job:
    return Job(name, DATA / f"{model}.tflite", accelerator, {"args_0": X}, **options)  # type: ignore[arg-type]


def fake(tmp_path: Path, *names: str, limit: float = 30.0, arguments: tuple[str, ...] = ()) -> dict[str, JobResult]:
    with Runner(tmp_path, time_limit=limit, command=(*FAKE, *arguments)) as runner:
        return runner.run([job(name) for name in names])


def worker_of(result: JobResult) -> float:
    """The fake worker answers with its process id."""
    return float(result.outputs["y"][0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_large_tensors_are_mapped_and_small_ones_hold_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(fake(tmp_path / "small", "ok")["ok"].outputs["y"], np.memmap)
    monkeypatch.setattr(jobs, "MAPPED_BYTES", 0)
    large = fake(tmp_path / "large", "ok")["ok"].outputs["y"]
    assert isinstance(large, np.memmap)
    assert not large.flags.writeable


def test_an_answer_is_read_as_it_was_given(tmp_path: Path) -> None:
    result = fake(tmp_path, "ok")["ok"]
    assert (result.status, result.detail, result.ok) == ("ok", "", True)
    assert not result.outputs["y"].flags.writeable
    assert result.unwritten == {"y": 1}
    assert (result.seconds, result.compile_seconds) == (3.0, 1.0)
    assert result.log_text == "log of ok\n"
    assert result.log_path.read_text() == result.log_text


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("segv", "crashed", "signal SIGSEGV"),
        ("abort", "crashed", "signal SIGABRT"),
        ("exit", "crashed", "exit code 3"),
        ("silent", "failed", "the worker gave no answer for this job"),
        ("not_json", "failed", "the worker's answer cannot be used: JSONDecodeError"),
        ("no_keys", "failed", "the worker's answer cannot be used: TypeError"),
        ("no_file", "failed", "the worker's answer cannot be used: FileNotFoundError"),
        ("outside", "failed", "the worker's answer cannot be used: FileNotFoundError"),
        ("wrong_shape", "failed", "out_000.npy holds float64 [3], announced was float64 [2]"),
        ("pickle", "failed", "the worker's answer cannot be used: ValueError"),
        ("failed", "failed", "Some ops are not accelerated. Add CPU."),
    ],
)
def test_a_bad_end_is_told_and_the_other_jobs_run(tmp_path: Path, name: str, status: str, detail: str) -> None:
    results = fake(tmp_path, "ok-1", name, "ok-2", "ok-3")
    assert list(results) == ["ok-1", name, "ok-2", "ok-3"]
    assert results[name].status == status
    assert detail in results[name].detail
    assert "\n" not in results[name].detail
    assert results[name].outputs == {}
    assert results[name].log_text == f"log of {name}\n"
    assert [results[f"ok-{k}"].status for k in (1, 2, 3)] == ["ok"] * 3
    restarted = worker_of(results["ok-1"]) != worker_of(results["ok-2"])
    assert restarted == (status == "crashed")
    assert worker_of(results["ok-2"]) == worker_of(results["ok-3"])


def test_two_crashes_in_one_request(tmp_path: Path) -> None:
    results = fake(tmp_path, "segv-1", "ok-1", "abort-2", "ok-2")
    assert [result.status for result in results.values()] == ["crashed", "ok", "crashed", "ok"]


def test_a_hang_ends_at_the_time_limit_with_all_it_started(tmp_path: Path) -> None:
    start = time.monotonic()
    results = fake(tmp_path, "ok-1", "hang", "ok-2", limit=1.0)
    assert time.monotonic() - start < 6
    assert [result.status for result in results.values()] == ["ok", "timed out", "ok"]
    assert results["hang"].detail == "no result after 1 s"
    grandchild = int(next(tmp_path.rglob("grandchild")).read_text())
    deadline = time.monotonic() + 5
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(grandchild)


def test_the_time_limit_counts_per_job(tmp_path: Path) -> None:
    results = fake(tmp_path, "slow-1", "slow-2", "slow-3", limit=1.2)
    assert {result.status for result in results.values()} == {"ok"}


def test_each_job_may_have_a_worker_of_its_own(tmp_path: Path) -> None:
    with Runner(tmp_path / "one", command=FAKE) as runner:
        together = runner.run([job("ok-1"), job("ok-2")])
    with Runner(tmp_path / "own", command=FAKE, alone=True) as runner:
        apart = runner.run([job("ok-1"), job("ok-2"), job("dies_early"), job("ok-3")])
    assert len({worker_of(result) for result in together.values()}) == 1
    assert len({worker_of(apart[name]) for name in ("ok-1", "ok-2")}) == 2
    assert apart["dies_early"].status == "not run"


def test_a_death_after_the_last_answer_does_not_matter(tmp_path: Path) -> None:
    with Runner(tmp_path, command=FAKE) as runner:
        assert runner.run([job("ok-last_words")])["ok-last_words"].ok
        assert runner.run([job("ok-dies_idle")])["ok-dies_idle"].ok
        assert runner.run([job("ok")])["ok"].ok


def test_a_worker_that_dies_between_jobs_is_replaced_without_blame(tmp_path: Path) -> None:
    with Runner(tmp_path, command=FAKE) as runner:
        results = runner.run([job("ok-1"), job("dies_early"), job("ok-2")])
    assert results["ok-1"].ok
    assert {results[name].status for name in ("dies_early", "ok-2")} == {"not run"}
    assert "SIGKILL (the system may have run out of memory)" in results["ok-2"].detail


def test_a_worker_that_cannot_start_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(
        RunnerError, match=r"exit code 1 before its first job: .*No module named 'ai_edge_litert'"
    ) as info:
        fake(tmp_path, "ok", arguments=("--broken",))
    assert "ai_edge_litert" in info.value.hint
    with pytest.raises(RunnerError, match=r"did not start within 0\.5 s"):
        fake(tmp_path / "2", "ok", limit=0.5, arguments=("--mute",))
    with pytest.raises(RunnerError, match="cannot be started"), Runner(tmp_path, command=["/nowhere"]) as runner:
        runner.run([job("ok")])


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunnerError, match="is full") as info:
        fake(tmp_path / "worker", "ok", "full")
    assert "TMPDIR" in info.value.hint

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(request_folder.shutil, "copyfile", no_space)
    with pytest.raises(RunnerError, match="is full"):
        fake(tmp_path / "parent", "ok")


def test_the_real_worker_says_that_the_disk_is_full(tmp_path: Path) -> None:
    # A limit on the size of files stands in for the disk. 8 blocks of 512 or 1024 bytes.
    command = ("sh", "-c", f"ulimit -f 8; exec {sys.executable} {runners.WORKER_FILE} --serve")
    big = Job("big", DATA / "mlp.tflite", "interpreter", {"args_0": X}, tensors="all")
    with Runner(tmp_path / "small", command=command) as runner:
        assert runner.run([big])["big"].ok
    no_room = ("sh", "-c", f"ulimit -f 0; exec {sys.executable} {runners.WORKER_FILE} --serve")
    with pytest.raises(RunnerError, match="is full"), Runner(tmp_path / "none", command=no_room) as runner:
        runner.run([big])


def test_ctrl_c_kills_the_worker_and_comes_through(tmp_path: Path) -> None:
    # Tests that a shell runs in the background start with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = Runner(tmp_path, command=FAKE)
    runner.warm_up()
    child = runner._child
    assert child is not None
    pid = child.process.pid
    assert os.getsid(pid) == pid != os.getsid(0)
    threading.Timer(0.7, lambda: os.kill(os.getpid(), 2)).start()
    with pytest.raises(KeyboardInterrupt):
        runner.run([job("hang")])
    assert not alive(pid)
    assert runner.run([job("ok")])["ok"].ok
    runner.close()


def test_progress_is_told_job_by_job(tmp_path: Path) -> None:
    done: list[str] = []
    with Runner(tmp_path, command=FAKE) as runner:
        runner.run([job("ok-1"), job("segv"), job("ok-2")], on_done=done.append)
    assert done == ["ok-1", "ok-2"]


def test_ids_must_fit(tmp_path: Path) -> None:
    with Runner(tmp_path, command=FAKE) as runner:
        for names in (["a", "a"], ["../a"], [""]):
            with pytest.raises(ValueError, match="job ids"):
                runner.run([job(name) for name in names])
        assert runner.run([]) == {}


def test_requests_stand_on_their_own_and_share_their_inputs(tmp_path: Path) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(b"first")
    with Runner(tmp_path / "work", command=FAKE) as runner:
        runner.run([Job("ok-1", model, "cpu", {"a": X, "b": X.copy()}), Job("ok-2", model, "cpu", {"a": X.T})])
        model.write_bytes(b"second!")
        runner.run([Job("ok-3", model, "cpu", {"a": X})])
    first, second = (tmp_path / "work" / "requests" / name for name in ("001", "002"))
    assert len(list((first / "inputs").iterdir())) == 2  # X and its transpose
    stored = next((second / "inputs").iterdir())
    assert stored.stat().st_ino == (first / "inputs" / stored.name).stat().st_ino
    jobs = json.loads((first / "request.json").read_text())["jobs"]
    assert (first / jobs[0]["model"]).read_bytes() == b"first"
    np.testing.assert_array_equal(np.load(first / jobs[1]["inputs"]["a"]), X.T)
    assert next(second.glob("*.tflite")).read_bytes() == b"second!"


def test_a_missing_model_is_an_error(tmp_path: Path) -> None:
    with Runner(tmp_path, command=FAKE) as runner, pytest.raises(RunnerError, match="is gone"):
        runner.run([Job("ok", tmp_path / "nowhere.tflite", "cpu", {})])


def test_the_real_worker_serves_and_repeats_itself_bit_by_bit(tmp_path: Path) -> None:
    with Runner(tmp_path / "a") as runner:
        first = runner.run([job("cpu"), job("gpu-1", accelerator="gpu"), job("gpu-2", accelerator="gpu")])
        again = runner.run([job("gpu-3", accelerator="gpu"), job("ops", accelerator="interpreter", tensors="all")])
    with Runner(tmp_path / "b") as runner:
        other = runner.run([job("gpu-4", accelerator="gpu")])
    assert first["cpu"].ok
    assert sorted(again["ops"].tensors)[0] == 0
    np.testing.assert_allclose(again["ops"].outputs["output_0"], first["cpu"].outputs["output_0"], rtol=1e-5)
    if not first["gpu-1"].ok:
        pytest.skip(f"no GPU: {first['gpu-1'].detail}")
    results = [first["gpu-1"], first["gpu-2"], again["gpu-3"], other["gpu-4"]]
    assert len({np.asarray(result.outputs["output_0"]).tobytes() for result in results}) == 1
    assert all("Selected adapter" in result.adapter_line for result in results)
    assert "Selected adapter" not in again["gpu-3"].log_text


def test_errors_of_the_real_runtime_are_one_useful_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path))
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path))
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(b"not a model")
    with Runner(tmp_path / "work") as runner:
        results = runner.run([job("gpu", accelerator="gpu"), Job("broken", broken, "cpu", {}), job("cpu")])
    assert results["gpu"].detail == "Failed to initialize WebGPU environment: INTERNAL: No adapters found"
    assert results["broken"].detail.startswith("Failed to load model from file")
    assert results["cpu"].ok


def test_the_interpreter_keeps_the_tensors_it_is_asked_for(tmp_path: Path) -> None:
    with Runner(tmp_path) as runner:
        jobs = [
            Job(name, DATA / "mlp.tflite", "interpreter", {"args_0": X}, tensors=wanted)
            for name, wanted in (("all", "all"), ("none", ()))
        ]
        whole, none = runner.run(jobs).values()
        some = tuple(sorted(whole.tensors))[1:3]
        part = runner.run([Job("some", DATA / "mlp.tflite", "interpreter", {"args_0": X}, tensors=some)])["some"]
    assert set(part.tensors) == set(some)
    assert not none.tensors
    for index in some:
        np.testing.assert_array_equal(part.tensors[index], whole.tensors[index])
        assert not part.tensors[index].flags.writeable


@pytest.mark.parametrize(
    "entry",
    [
        {"offset": 1 << 20},
        {"offset": -64},
        {"dtype": "object"},
        {"shape": [1 << 40]},
    ],
    ids=["beyond the end", "before the start", "objects", "too large"],
)
def test_an_answer_about_tensors_is_not_trusted(tmp_path: Path, entry: dict[str, object]) -> None:
    (tmp_path / "tensors.bin").write_bytes(bytes(1024))
    held = {"file": "j/tensors.bin", "offset": 0, "shape": [4], "dtype": "float32"}
    answer = {
        "status": "ok", "error": "", "outputs": {}, "tensors": {"3": {**held, **entry}},
        "seconds": {"compile": 0.0, "run": 0.0}, "fell_back": False,
    }  # fmt: skip
    (tmp_path / "response.json").write_text(json.dumps(answer))
    result = read_result(Job("j", tmp_path / "m", "interpreter", {}), tmp_path)
    assert result.status == "failed"
    assert "cannot be used" in result.detail
