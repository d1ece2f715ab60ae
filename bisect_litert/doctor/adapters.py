"""Which adapter each runtime sees, and whether fp16 and fp32 are two things there: a small model, run in both."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bisect_litert.devices import placement
from bisect_litert.devices.jobs import TIMED_OUT, Job, JobResult
from bisect_litert.devices.runners import Runner, worker_command
from bisect_litert.errors import RunnerError
from bisect_litert.records.checkup import Check, State
from bisect_litert.versions import runtimes
from bisect_litert.versions.runtimes import Runtime

MODEL = Path(__file__).parents[1] / "data" / "probe.tflite"
SHAPE = (3, 8)
JOB_LIMIT = 60.0
"""Seconds for each of the jobs: a software driver compiles their kernels the first time."""
LIMIT = 4 * JOB_LIMIT
FP16_ERROR = (3e-5, 1e-2)
"""Between these is what fp16 costs this model (5e-4 where it was measured); fp32 costs less than the first."""
HERE = Runtime("", sys.executable, "")
"""The runtime that is installed with us."""


def known() -> tuple[Runtime, ...]:
    """Returns the installed runtime and the cached ones."""
    return HERE, *runtimes.cached()


def title(runtime: Runtime) -> str:
    """Returns what to call a runtime's check."""
    return f"runtime {runtime.version}" if runtime.version else "runtime"


def look(runtime: Runtime) -> Iterator[Check]:
    """Runs the small model on the CPU and on the GPU in both precisions, in a process of its own."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    jobs = [
        Job("cpu", MODEL, "cpu", {"args_0": x}),
        Job("gpu", MODEL, "gpu", {"args_0": x}, fallback=False),
        Job("fp32", MODEL, "gpu", {"args_0": x}, fp32=True, fallback=False),
    ]
    name = title(runtime)
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as folder:
        try:
            with Runner(Path(folder), JOB_LIMIT, worker_command(runtime.python)) as runner:
                seen = runner.run(jobs)
        except RunnerError as error:
            yield Check(name, State.BAD, error.message.rstrip("."), _reinstall(runtime, error.hint))
            return
    yield judge(name, runtime, seen)


def judge(name: str, runtime: Runtime, seen: dict[str, JobResult]) -> Check:
    """Says what the three jobs come to."""
    cpu, gpu, exact = seen["cpu"], seen["gpu"], seen["fp32"]
    version = next((r.versions["ai-edge-litert"] for r in seen.values() if "ai-edge-litert" in r.versions), "")
    who = f"ai-edge-litert {version or runtime.version}".rstrip()
    facts = {"version": version, "lacks": ", ".join(gpu.lacks)}
    if gpu.unavailable:
        return Check(name, State.NOTE, gpu.detail, "Nothing can be tested on a GPU under it.", facts)
    if not cpu.ok:
        return Check(name, State.BAD, f"{who} does not run on the CPU: {cpu.detail}", _reinstall(runtime, ""), facts)
    log = placement.read(gpu.log_text, 3, gpu.adapter_line)
    facts |= {"adapter": log.adapter, "software": str(log.software).lower()}
    if not gpu.ok:
        reason = log.no_gpu_reason or f"The GPU run {gpu.status}: {gpu.detail}."
        said, _, fix = reason.partition(". ")
        if gpu.status == TIMED_OUT:
            fix = "A software driver may still be compiling: try again. A driver that hangs has to be replaced."
        return Check(
            name, State.BAD, f"{who}: {said.rstrip('.')}", fix or "See whether `vulkaninfo --summary` works.", facts
        )
    where = f"{who} on {log.adapter or 'an adapter without a name'}{', software' if log.software else ''}"
    half, single = (_error(cpu, result) for result in (gpu, exact))
    facts |= {"fp16 error": f"{half:.2e}", "fp32 error": f"{single:.2e}" if exact.ok else ""}
    if log.validation_errors:
        fix = "Its results are worthless; install another driver."
        return Check(name, State.BAD, f"{where}: the driver refuses a shader: {log.validation_errors[0]}", fix, facts)
    if not half < FP16_ERROR[1]:
        said = f"{where}: a matrix product comes out wrong (off by {half:.2g})"
        return Check(name, State.BAD, said, "Its results are worthless; install another driver.", facts)
    if half < FP16_ERROR[0]:
        said = f"{where}: default precision is as exact as fp32 (off by {half:.2g})"
        fix = "Faults of fp16 do not show here; what devices with fp16 do is emulated with --no-gpu."
        return Check(name, State.NOTE, said, fix, facts)
    if exact.unavailable:
        said = f"{where}: fp16 (off by {half:.2g}), no option for fp32"
        return Check(name, State.OK, said, facts=facts)
    if not exact.ok or not single < FP16_ERROR[0]:
        why = (
            f"fp32 {exact.status}: {exact.detail}"
            if not exact.ok
            else f"asked for fp32 it is still off by {single:.2g}"
        )
        fix = "No control run tells fp16 from a wrong kernel here; install another driver or runtime."
        return Check(name, State.BAD, f"{where}: {why}", fix, facts)
    return Check(
        name, State.OK, f"{where}: fp16 (off by {half:.2g}) and fp32 (off by {single:.2g}) differ", facts=facts
    )


def _error(cpu: JobResult, other: JobResult) -> float:
    """Relative L2 error of the only output; nan where there is none."""
    if not other.ok:
        return float("nan")
    right, seen = (np.asarray(next(iter(r.outputs.values())), np.float64) for r in (cpu, other))
    return float(np.linalg.norm(seen - right) / np.linalg.norm(right))


def _reinstall(runtime: Runtime, hint: str) -> str:
    if not runtime.version:
        return hint or f"{sys.executable} -m pip install --force-reinstall ai-edge-litert"
    return f"It is made again when it is next used: bisect-litert MODEL --runtime {runtime.version}"
