"""What is wrong is found, in one line, with what puts it right; nothing hangs; what is fine is left alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from rich.console import Console

from bisect_litert import doctor
from bisect_litert.cli import main
from bisect_litert.devices.jobs import JobResult
from bisect_litert.doctor import adapters, installed, places, self_test
from bisect_litert.records.checkup import Check, Checkup, State
from bisect_litert.reports.checkup import render_check, render_end
from bisect_litert.versions import runtimes
from bisect_litert.versions.runtimes import Runtime

LOGS = Path(__file__).parent / "data"
WHOLE = (LOGS / "whole.log").read_text(encoding="utf-8")
ADAPTER = "Selected adapter: A GPU, arch=none"
RIGHT = np.linspace(-1, 1, 12, dtype=np.float32)


def only(checks: Iterator[Check]) -> Check:
    (check,) = checks
    return check


# -- adapters ----------------------------------------------------------------------------------------------------------


def job(name: str, error: float = 0.0, log: str = "whole", **more: object) -> JobResult:
    y = RIGHT * (1 + error)
    text = (LOGS / f"{log}.log").read_text(encoding="utf-8")
    result = JobResult(name, "ok", outputs={"y": y}, versions={"ai-edge-litert": "2.3.0"}, log_text=text)
    line = ADAPTER if name != "cpu" and not more.get("status") else ""
    return replace(result, adapter_line=line, **more)  # type: ignore[arg-type]


def failed(name: str, log: str = "whole", detail: str = "it broke", **more: object) -> JobResult:
    return job(name, log=log, status="failed", detail=detail, outputs={}, **more)


NO_FP32 = "ai-edge-litert 2.1.3 has no option for fp32 on the GPU"
GPU, FP32 = job("gpu", 5e-4), job("fp32", 1e-7)


@pytest.mark.parametrize(
    ("gpu", "fp32", "state", "said", "fix"),
    [
        (GPU, FP32, State.OK, "fp16 (off by 0.0005) and fp32 (off by 1.2e-07) differ", ""),
        (GPU, failed("fp32", detail=NO_FP32, unavailable=True), State.OK, "no option for fp32", ""),
        (failed("gpu", log="no_driver"), FP32, State.BAD, "No Vulkan driver is installed", "scripts/vulkan"),
        (failed("gpu", log="no_loader"), FP32, State.BAD, "libvulkan.so.1", "Install libvulkan1"),
        (failed("gpu", log="no_device"), FP32, State.BAD, "finds no device that it can use", "permissions"),
        (failed("gpu", detail="no", unavailable=True), FP32, State.NOTE, "no", "Nothing can be tested"),
        (failed("gpu"), FP32, State.BAD, "The GPU run failed: it broke", "vulkaninfo"),
        (replace(failed("gpu"), status="timed out"), FP32, State.BAD, "timed out", "still be compiling"),
        (job("gpu", 0.3), FP32, State.BAD, "comes out wrong (off by 0.3)", "another driver"),
        (job("gpu", float("nan")), FP32, State.BAD, "comes out wrong", "another driver"),
        (job("gpu", 5e-4, log="validation"), FP32, State.BAD, "the driver refuses a shader", "another driver"),
        (job("gpu", 1e-7), FP32, State.NOTE, "default precision is as exact as fp32", "--no-gpu"),
        (GPU, job("fp32", 5e-4), State.BAD, "asked for fp32 it is still off by 0.0005", "No control run"),
        (GPU, failed("fp32"), State.BAD, "fp32 failed: it broke", "No control run"),
    ],
)  # fmt: skip
def test_what_three_jobs_say_of_a_runtime(gpu: JobResult, fp32: JobResult, state: State, said: str, fix: str) -> None:
    check = adapters.judge("runtime", adapters.HERE, {"cpu": job("cpu"), "gpu": gpu, "fp32": fp32})
    assert check.state is state, check
    assert said in check.said
    assert fix in check.fix
    assert bool(check.fix) == (state is not State.OK)


def test_a_driver_that_is_too_old_is_told_with_what_to_install() -> None:
    old = "E0000 x.cc:1] Vulkan shaderUniformBufferArrayDynamicIndexing required.\nNo adapters found\n"
    gpu = replace(failed("gpu"), log_text=old)
    check = adapters.judge("runtime", adapters.HERE, {"cpu": job("cpu"), "gpu": gpu, "fp32": gpu})
    assert check.state is State.BAD
    assert "The Vulkan driver is too old" in check.said
    assert "Mesa 23.2 or later" in check.fix


def test_the_runtime_here_on_its_adapter() -> None:
    check = only(adapters.look(adapters.HERE))
    if not check.facts.get("adapter"):
        pytest.skip("no GPU that LiteRT accepts; scripts/vulkan installs a software one")
    assert check.state is State.OK, check
    assert 3e-5 < float(check.facts["fp16 error"]) < 1e-2
    assert float(check.facts["fp32 error"]) < 1e-6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Vulkan's loader is asked")
def test_without_a_driver_it_is_the_driver_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "gone.json")
    monkeypatch.setenv("VK_DRIVER_FILES", nowhere)
    monkeypatch.setenv("VK_ICD_FILENAMES", nowhere)  # what loaders before 1.3.207 read
    check = only(adapters.look(adapters.HERE))
    assert check.state is State.BAD
    assert "river" in check.said or "oader" in check.said
    assert "scripts/vulkan" in check.fix
    drivers = only(installed.drivers())
    assert drivers.state is State.BAD
    assert nowhere in drivers.said


def test_a_runtime_that_does_not_start_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "2.1.6" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(runtimes, "folder", lambda: tmp_path)
    here, other = adapters.known()
    assert here == adapters.HERE
    check = only(adapters.look(other))
    assert (check.name, check.state) == ("runtime 2.1.6", State.BAD)
    assert "no such thing" in check.said
    assert check.fix == "It is made again when it is next used: bisect-litert MODEL --runtime 2.1.6"


def test_one_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(adapters, "JOB_LIMIT", 1.0)
    started = time.monotonic()
    check = only(adapters.look(Runtime("2.1.6", str(python), "2.1.6")))
    assert check.state is State.BAD
    assert time.monotonic() - started < 20


# -- what is installed -------------------------------------------------------------------------------------------------


def installed_as(monkeypatch: pytest.MonkeyPatch, **versions: str) -> Check:
    rules = ["torch<2.15,>=2.4", "litert-torch<0.11,>=0.10", "numpy>=1.26"]
    monkeypatch.setattr(installed, "_requirements", lambda: {Requirement(r).name: Requirement(r) for r in rules})
    have = {"torch": "2.13.0+cpu", "litert-torch": "0.10.0", "numpy": "2.4.6", "bisect-litert": "0.1.0"}
    have |= {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(installed, "_version", lambda name: have.get(name, ""))
    return only(installed.packages())


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = installed_as(monkeypatch)
    assert fine.state is State.OK
    assert "torch 2.13.0+cpu" in fine.said
    old = installed_as(monkeypatch, numpy="1.20.0")
    assert old.state is State.BAD
    assert "numpy 1.20.0 is not >=1.26" in old.said
    assert old.fix == f'{sys.executable} -m pip install "numpy>=1.26"'
    bare = installed_as(monkeypatch, torch="", litert_torch="")
    assert bare.state is State.NOTE  # a .tflite file needs neither
    assert "no torch and litert-torch: .tflite files only" in bare.said
    assert 'pip install "torch<2.15,>=2.4"' in bare.fix
    assert installed_as(monkeypatch, numpy="").state is State.BAD


def test_the_real_requirements_are_read() -> None:
    assert {"ai-edge-litert", "numpy", "torch"} <= set(installed._requirements())
    assert "pytest" not in installed._requirements()
    assert only(installed.python()).state is State.OK


# -- places ------------------------------------------------------------------------------------------------------------


def test_the_runtime_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert only(places.runtime_folder()).state is State.OK
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert only(places.runtime_folder()).state is State.OK
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert only(places.runtime_folder()).state is State.BAD
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    assert only(places.runtime_folder()).state is State.BAD


def test_the_shader_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MESA_SHADER_CACHE_DIR", str(tmp_path / "to" / "be" / "made"))
    assert only(places.shader_cache()).state is State.OK
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MESA_SHADER_CACHE_DIR", str(tmp_path / "file"))
    assert only(places.shader_cache()).state is State.NOTE
    monkeypatch.setenv("MESA_SHADER_CACHE_DISABLE", "true")
    assert "MESA_SHADER_CACHE_DISABLE" in only(places.shader_cache()).said


def test_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(places.memory()).said.endswith("cores")
    monkeypatch.setattr(places, "MEMORY_BYTES", 1 << 60)
    assert only(places.memory()).state is State.NOTE
    monkeypatch.setattr(places, "DISK_BYTES", 0)
    assert only(places.disk()).state is State.OK
    monkeypatch.setattr(places, "DISK_BYTES", 1 << 60)
    check = only(places.disk())
    assert check.state is State.BAD
    assert "GiB left in" in check.said


# -- the self-test -----------------------------------------------------------------------------------------------------


def test_the_self_test_finds_its_overflow_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_torch", lambda: False)
    check = only(self_test.run())
    assert check.state is State.OK, check
    assert "self_test.tflite: the planted overflow was found on" in check.said


def test_its_two_models_are_one() -> None:
    import importlib.util

    from small_models import run_cpu

    from bisect_litert.graphs.graph import Graph

    spec = importlib.util.spec_from_file_location("self_test_model", self_test.DATA / "self_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    graph = Graph.read(self_test.DATA / "self_test.tflite")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (y,) = run_cpu(graph, {"args_0": module.inputs.numpy()}, Path(folder)).outputs.values()
    np.testing.assert_allclose(y, module.model(module.inputs).detach().numpy(), atol=1e-3)


@pytest.mark.parametrize(
    ("culprits", "code", "state", "said"),
    [
        ([("overflow", "overflow")], 1, State.OK, "the planted overflow was found on gpu in 3 s"),
        ([], 0, State.BAD, "got no culprit (none) on gpu"),
        ([("after", "overflow")], 1, State.BAD, "got overflow in after"),
        ([("overflow", "overflow"), ("after", "wrong-kernel")], 1, State.BAD, "wrong-kernel in after"),
        (None, 125, State.BAD, "self_test.py failed: the disk is full."),
    ],
)
def test_what_the_self_test_says(culprits: object, code: int, state: State, said: str) -> None:
    found = [{"block": b, "cause": c} for b, c in culprits] if isinstance(culprits, list) else None
    answer = json.dumps({"culprits": found, "target": "gpu", "verdict": {"cause": "none"}}) if found is not None else ""
    check = self_test.judge("self_test.py", code, answer, "noise\nerror: the disk is full.\nFree some.\n", 3.2)
    assert check.state is state
    assert said in check.said


# -- all of it ---------------------------------------------------------------------------------------------------------


def plan(*looks: Callable[[], Iterator[Check]]) -> Callable[[bool], Iterator[tuple[str, object, float]]]:
    return lambda quick: iter([(f"check {i}", look, 0.3) for i, look in enumerate(looks)])


def test_a_check_that_hangs_or_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs() -> Iterator[Check]:
        time.sleep(30)
        yield Check("never", State.OK, "")

    def breaks() -> Iterator[Check]:
        raise ZeroDivisionError("by zero")
        yield

    def works() -> Iterator[Check]:
        yield Check("works", State.OK, "fine")

    monkeypatch.setattr(doctor, "_plan", plan(hangs, breaks, works))
    told: list[Check] = []
    started = time.monotonic()
    found = doctor.examine(told.append)
    assert time.monotonic() - started < 10
    assert tuple(told) == found.checks
    assert [c.state for c in found.checks] == [State.BAD, State.BAD, State.OK]
    assert found.checks[0].said == "gave no answer within 0.3 s"
    assert "by zero" in found.checks[1].said
    assert not found.fine


def test_every_line_has_a_mark_and_what_is_wrong_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fix = "python -m pip install " + " ".join(f"package-{i}" for i in range(20))
    bad = Check("packages", State.BAD, "numpy is missing", fix)
    fine = Check("disk", State.OK, "free: " + ", ".join(f"{i} GiB there" for i in range(20)))
    monkeypatch.setattr(doctor, "_plan", plan(lambda: iter([fine]), lambda: iter([bad])))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ disk            free: 0 GiB there, ")
    assert all(len(line) <= 80 for line in lines if "pip install" not in line)
    assert "✗ packages        numpy is missing" in lines
    assert f"                  → {fix}" in lines  # in one piece, to be copied
    assert lines[-1] == "1 thing to put right: packages."
    monkeypatch.setattr(doctor, "_plan", plan(lambda: iter([fine])))
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["fine"] is True
    assert data["checks"][0]["state"] == "ok"


def test_a_terminal_without_symbols() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=60)
    render_check(Check("disk", State.BAD, "full", "Make room."), console)
    render_end(Checkup(()), console)
    console.file.flush()
    text = console.file.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert text.splitlines()[:2] == ["x disk            full", "                  -> Make room."]
    assert "All is fine." in text


def test_it_never_imports_what_it_looks_at() -> None:
    code = (
        "import sys\nfrom bisect_litert.cli import main\ncode = main(['doctor', '--quick'])\n"
        "print([m for m in ('torch', 'litert_torch', 'ai_edge_litert', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=os.environ
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
