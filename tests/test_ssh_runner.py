"""Over a real sshd on loopback: what comes back, every way to die, and a connection that is cut."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from loopback_ssh import LoopbackSsh, Wire, needs_sshd

from bisect_litert import cli
from bisect_litert.devices import ssh_host
from bisect_litert.devices.jobs import Job
from bisect_litert.devices.machines import device_name, open_runner
from bisect_litert.devices.runners import WORKER_FILE, Runner
from bisect_litert.devices.ssh_channel import host_of, parse_ssh
from bisect_litert.devices.ssh_runner import SshRunner
from bisect_litert.errors import RunnerError, UsageError
from bisect_litert.record import RunRecord
from bisect_litert.reports import junit, sarif
from bisect_litert.request import BisectRequest

pytestmark = needs_sshd
DATA = Path(__file__).parent / "data"
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.norm(x * 3000))


torch.manual_seed(0)
model = Net().eval()
inputs = (torch.randn(3, 8),)
"""
X = np.arange(24, dtype=np.float32).reshape(3, 8) / 10


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSsh]:
    with LoopbackSsh(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_host, "PAUSES", (0.05, 0.1, 0.2))


def job(name: str, accelerator: str = "gpu", model: Path = DATA / "mlp.tflite", **options: str) -> Job:
    return Job(name, model, accelerator, {"args_0": X}, **options)


def over(
    tmp_path: Path, sshd: LoopbackSsh, port: int = 0, *, limit: float = 30.0, fake: bool = True, keep: float = 600.0,
    python: str = sys.executable,
) -> SshRunner:  # fmt: skip
    ssh, destination = parse_ssh(shlex.split(sshd.command(port)))
    worker = DATA / "fake_worker.py" if fake else WORKER_FILE
    return SshRunner(tmp_path / "far", limit, ssh, destination, python, keep, worker)


def gone(path: str, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(path).exists()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_any_options_of_ssh_may_stand_around_the_host() -> None:
    assert parse_ssh(["ssh", "box"]) == (("ssh",), "box")
    options = ("ssh", "-4", "-p", "2222", "-i", "key", "-oBatchMode=yes", "-vJjump")
    assert parse_ssh([*options, "me@box"]) == (options, "me@box")
    assert parse_ssh(["/usr/bin/ssh", "box", "-p", "22"]) == (("/usr/bin/ssh", "-p", "22"), "box")
    for words, said in (
        (["ssh"], "no host"),
        (["ssh", "-p", "22"], "no host"),
        (["ssh", "box", "python3"], "'python3'"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_ssh(words)
    names = ("box", "me@box", "ssh://me@box:22", "ssh://box", "me@[::1]")
    assert [host_of(name) for name in names] == ["box", "box", "box", "box", "::1"]
    assert device_name(BisectRequest("m.py", runner="ssh -p 22 me@box")) == "box"


# -- what comes back ---------------------------------------------------------------------------------------------------


def test_results_are_those_of_the_local_worker_bit_by_bit(tmp_path: Path, sshd: LoopbackSsh) -> None:
    jobs = [job("cpu", "cpu"), job("gpu"), job("all", "interpreter", tensors="all")]
    with Runner(tmp_path / "near") as runner:
        near = runner.run(jobs)
    done: list[str] = []
    with over(tmp_path, sshd, fake=False) as runner:
        far = runner.run(jobs, done.append)
        folder = runner.host.session
        assert Path(folder).is_dir()
        again = runner.run(jobs[:1])["cpu"]
    assert done == ["cpu", "gpu", "all"]
    for name, result in far.items():
        assert (result.status, result.detail) == (near[name].status, near[name].detail)
        assert {k: np.asarray(v).tobytes() for k, v in result.outputs.items()} == {
            k: np.asarray(v).tobytes() for k, v in near[name].outputs.items()
        }
        assert result.versions == near[name].versions != {}
    assert sorted(far["all"].tensors) == sorted(near["all"].tensors)
    assert again.ok
    assert gone(folder)
    assert not list((tmp_path / "far").rglob("*.partial"))


def test_gpu_jobs_go_over_ssh_and_the_reference_stays(tmp_path: Path, sshd: LoopbackSsh) -> None:
    request = BisectRequest("m.py", runner=sshd.command(), runner_python=sys.executable)
    with open_runner(tmp_path, request) as runner:
        results = runner.run([job("cpu", "cpu"), job("gpu")])
    assert results["cpu"].ok
    assert tmp_path / "target" in results["gpu"].log_path.parents
    assert tmp_path / "target" not in results["cpu"].log_path.parents


def test_a_whole_run_over_ssh_finds_what_a_run_here_finds(tmp_path: Path, sshd: LoopbackSsh) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    far = ["--runner", sshd.command(), "--runner-python", sys.executable]
    records = []
    for name, options in (("near", []), ("far", far)):
        code = cli.main([str(tmp_path / "net.py"), "--out", str(tmp_path / name), "-q", *options])
        records.append(RunRecord.load(tmp_path / name))
        assert code == 1
    here, there = records
    if here.target != "gpu":
        pytest.skip("no GPU here")
    assert [(c.block, c.cause, c.op, c.source) for c in there.culprits] == [
        (c.block, c.cause, c.op, c.source) for c in here.culprits
    ]
    assert [(b.name, b.mark, b.ratio) for b in there.blocks] == [(b.name, b.mark, b.ratio) for b in here.blocks]
    assert there.placement == here.placement
    assert there.environment["device"] == "127.0.0.1"
    assert there.environment["device ai-edge-litert"] == here.environment["ai-edge-litert"]
    assert not any(name.startswith("device") for name in here.environment)
    report = (tmp_path / "far" / "report.md").read_text()
    for text in (report, junit.render(there), sarif.render(there), there.to_json()):
        assert "127.0.0.1" in text


def test_files_are_sent_once(tmp_path: Path, sshd: LoopbackSsh) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(np.random.default_rng(1).bytes(4 << 20))
    with Wire(sshd.port) as wire, over(tmp_path, sshd, wire.port) as runner:
        runner.run([job("ok-1", model=model)])
        first = wire.sent[0]
        runner.run([job("ok-2", model=model), job("ok-3", model=model)])
        assert 4 << 20 < first < 5 << 20
        assert wire.sent[0] - first < 1 << 17


def test_large_tensors_are_not_held_in_memory(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with over(tmp_path, sshd) as runner:
        runner.run([job("ok-1")])
        tracemalloc.start()
        try:
            result = runner.run([job("big")])["big"]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(result.outputs["y"], np.memmap)
    assert result.outputs["y"].nbytes == 8 << 20
    assert peak < 6 << 20
    np.testing.assert_array_equal(result.outputs["y"], np.random.default_rng(0).random(1 << 20))


# -- every way to die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("segv", "crashed", "signal SIGSEGV on 127.0.0.1"),
        ("exit", "crashed", "exit code 3 on 127.0.0.1"),
        ("silent", "failed", "the worker gave no answer for this job"),
        ("not_json", "failed", "the worker's answer cannot be used"),
        ("no_file", "failed", "the worker's answer cannot be used: FileNotFoundError"),
        ("failed", "failed", "Some ops are not accelerated. Add CPU."),
    ],
)
def test_a_bad_end_is_told_and_the_other_jobs_run(
    tmp_path: Path, sshd: LoopbackSsh, name: str, status: str, detail: str
) -> None:
    with over(tmp_path, sshd) as runner:
        results = runner.run([job("ok-1"), job(name), job("ok-2")])
    assert [result.status for result in results.values()] == ["ok", status, "ok"]
    assert results[name].detail.startswith(detail)
    assert results[name].log_text == f"log of {name}\n"


def test_a_hang_ends_at_the_time_limit_with_all_it_started_there(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with over(tmp_path, sshd, limit=1.0) as runner:
        runner.run([job("ok-0")])
        far = Path(runner.host.session)
        seen: list[int] = []

        def look() -> None:
            seen.extend(int(file.read_text()) for file in far.rglob("grandchild"))

        threading.Timer(0.7, look).start()
        results = runner.run([job("ok-1"), job("hang"), job("ok-2")])
    assert [result.status for result in results.values()] == ["ok", "timed out", "ok"]
    assert results["hang"].log_text == "log of hang\n"
    assert len(seen) == 1
    assert not alive(seen[0])


def test_ctrl_c_leaves_nothing_there(tmp_path: Path, sshd: LoopbackSsh) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner = over(tmp_path, sshd)
    runner.warm_up()
    folder = runner.host.session
    threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), runner:
        runner.run([job("hang")])
    assert time.monotonic() - start < 8
    assert gone(folder)


def test_ctrl_c_in_a_transfer_waits_for_no_end_of_it(
    tmp_path: Path, sshd: LoopbackSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = 0

    def decompress(_: bytes) -> bytes:
        nonlocal pieces
        pieces += 1
        if pieces > 3:
            raise KeyboardInterrupt
        return b""

    monkeypatch.setattr(ssh_host.zlib, "decompress", decompress)
    runner = over(tmp_path, sshd)
    runner.warm_up()
    folder = runner.host.session
    with pytest.raises(KeyboardInterrupt), runner:
        runner.run([job("big")])
    assert pieces == 4
    assert gone(folder)


def test_a_full_disk_there_is_said(tmp_path: Path, sshd: LoopbackSsh) -> None:
    small = tmp_path / "python"
    small.write_text(f'#!/bin/sh\nulimit -f 64\nexec {sys.executable} "$@"\n')  # blocks of 512 or 1024 bytes
    small.chmod(0o755)
    model = tmp_path / "model.tflite"
    model.write_bytes(bytes(1 << 20))
    far = over(tmp_path, sshd, python=str(small))
    with pytest.raises(RunnerError, match=r"disk of 127\.0\.0\.1 that holds .* is full") as info, far as runner:
        runner.run([job("ok", model=model)])
    assert "TMPDIR" in info.value.hint
    far = over(tmp_path / "2", sshd)
    with pytest.raises(RunnerError, match=r"disk that holds .* on 127\.0\.0\.1 is full"), far as runner:
        runner.run([job("full")])


# -- a machine that cannot be used -------------------------------------------------------------------------------------


def test_what_is_missing_is_said_with_the_command_that_installs_it(tmp_path: Path, sshd: LoopbackSsh) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(RunnerError, match="lacks numpy and ai_edge_litert") as info:
        over(tmp_path, sshd, python=str(bare)).warm_up()
    assert f"{bare} -m pip install numpy ai-edge-litert" in info.value.hint
    with pytest.raises(RunnerError, match=r"127\.0\.0\.1 has no /nowhere/python") as info:
        over(tmp_path / "2", sshd, python="/nowhere/python").warm_up()
    assert "--runner-python" in info.value.hint


def test_a_host_that_cannot_be_reached_is_said_with_the_words_of_ssh(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with Wire(sshd.port) as wire:
        port = wire.port
    with pytest.raises(RunnerError, match=r"cannot be reached over ssh: .*Connection refused"):
        over(tmp_path, sshd, port).warm_up()
    with pytest.raises(RunnerError, match="There is no /nowhere/ssh here"):
        SshRunner(tmp_path, 30, ("/nowhere/ssh",), "box").warm_up()


def fake_ssh(tmp_path: Path, text: str) -> tuple[str, ...]:
    """An ssh that runs the command here, and does something first."""
    path = tmp_path / "ssh"
    path.write_text(f'#!/bin/sh\n{text}\nfor last; do :; done\nexec sh -c "$last"\n')
    path.chmod(0o755)
    return (str(path),)


def test_what_login_scripts_print_does_no_harm(tmp_path: Path) -> None:
    ssh = fake_ssh(tmp_path, "echo Welcome to the lab; echo; printf '\\377no newline'")
    with SshRunner(tmp_path, 30, ssh, "box", sys.executable, worker=DATA / "fake_worker.py") as runner:
        assert runner.run([job("ok")])["ok"].ok


def test_an_old_python_is_said(tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text('#!/bin/sh\necho "$0 is Python 3.6.8, and 3.9 is needed" >&2; exit 1\n')
    old.chmod(0o755)
    with pytest.raises(RunnerError, match=r"box: .*is Python 3\.6\.8, and 3\.9 is needed"):
        SshRunner(tmp_path, 30, fake_ssh(tmp_path, ""), "box", str(old)).warm_up()


# -- a connection that breaks ------------------------------------------------------------------------------------------


def test_a_download_that_is_cut_goes_on_where_it_stopped(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with Wire(sshd.port, down=(3 << 20, 3 << 20)) as wire, over(tmp_path, sshd, wire.port) as runner:
        results = runner.run([job("ok-1"), job("big"), job("ok-2")])
        passed = sum(wire.passed)
    assert {result.status for result in results.values()} == {"ok"}
    np.testing.assert_array_equal(results["big"].outputs["y"], np.random.default_rng(0).random(1 << 20))
    assert wire.connections == 3
    assert len(list((tmp_path / "far" / "requests").glob("0*"))) == 1  # nothing was asked for again
    assert passed < 10 << 20  # 8 MiB, and a part of a buffer lost at each cut


def test_an_upload_that_is_cut_goes_on_where_it_stopped(tmp_path: Path, sshd: LoopbackSsh) -> None:
    model = tmp_path / "model.tflite"
    model.write_bytes(np.random.default_rng(1).bytes(8 << 20))
    with Wire(sshd.port, up=(3 << 20, 3 << 20)) as wire, over(tmp_path, sshd, wire.port) as runner:
        results = runner.run([job("ok", model=model)])
        sent = sum(wire.sent)
        there = next(Path(runner.host.session).rglob("*model.tflite")).read_bytes()
    assert results["ok"].ok
    assert there == model.read_bytes()
    assert wire.connections == 3
    assert sent < 13 << 20  # ssh's window of 2 MiB may be lost at each cut


def test_a_cut_while_a_job_runs_costs_that_job_only(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with Wire(sshd.port) as wire, over(tmp_path, sshd, wire.port) as runner:
        first = runner.run([job("ok-0")])["ok-0"].outputs["y"][0]
        folder = runner.host.session
        threading.Timer(0.9, wire.cut).start()
        results = runner.run([job("slow-1"), job("slow-2"), job("slow-3")])
        assert runner.host.session == folder
    assert {result.status for result in results.values()} == {"ok"}
    workers = [float(result.outputs["y"][0]) for result in results.values()]
    assert workers[0] == first != workers[1] == workers[2]
    assert wire.connections == 2
    assert gone(folder)


def test_a_connection_that_cannot_be_made_again_keeps_what_came(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with Wire(sshd.port) as wire, over(tmp_path, sshd, wire.port, keep=0.3) as runner:
        folder = ""

        def cut(_: str) -> None:
            nonlocal folder
            folder = runner.host.session
            wire.__exit__()

        results = runner.run([job("ok"), job("hang")], cut)
        assert [result.status for result in results.values()] == ["ok", "not run"]
        assert "broke and cannot be made again" in results["hang"].detail
        with pytest.raises(RunnerError, match="cannot be reached"):
            runner.run([job("ok")])
    assert gone(folder)  # the far end's own doing


def test_a_job_that_always_takes_the_connection_with_it_ends_the_run(tmp_path: Path, sshd: LoopbackSsh) -> None:
    with Wire(sshd.port) as wire, over(tmp_path, sshd, wire.port, keep=5) as runner:
        stop, cuts = threading.Event(), set[int]()
        runner.run([job("ok")])
        there = Path(runner.host.session, "requests")

        def cutter() -> None:
            while not stop.wait(0.02):
                for started in there.glob("*/response/hang/started"):
                    with suppress(FileNotFoundError):
                        if started.stat().st_mtime_ns not in cuts:
                            cuts.add(started.stat().st_mtime_ns)
                            wire.cut()

        threading.Thread(target=cutter, daemon=True).start()
        with pytest.raises(RunnerError, match="broke 6 times in a row"):
            runner.run([job("hang")])
        stop.set()
        assert len(cuts) == 6
