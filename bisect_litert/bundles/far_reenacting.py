"""Runs a reproduction on the machine that a runner reaches, and says what its script would say there."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.bundles import repro_script
from bisect_litert.bundles.reproduction import MODEL, Reproduction
from bisect_litert.devices.jobs import CRASHED, FAILED, TIMED_OUT, Job, JobResult, JobRunner

_ENDINGS = {CRASHED: "crash", TIMED_OUT: "hang"}


def run_elsewhere(folder: Path, about: Reproduction, runner: JobRunner) -> tuple[str, dict[str, Any]]:
    """Runs what `repro.py` runs: GPU in both precisions, with the taps where they decide, and the CPU.

    Args:
        folder: Holds model.tflite and the tensors.
        about: Its repro.json.
        runner: Reaches the machine; CPU jobs may stay here.

    Returns:
        What the script would print, and what it would measure (`reenacting.run_script`).
    """
    inputs = {t.name: np.load(folder / t.file, allow_pickle=False) for t in about.inputs}
    expected = {t.name: np.load(folder / t.file, allow_pickle=False) for t in about.outputs}
    plan = {"GPU": (MODEL, False), "GPU, fp32": (MODEL, True)} if about.reference != "torch" else {}
    if about.tapped:
        plan["GPU, tapped"] = (about.tapped, False)
    jobs = {
        name: Job(f"repro-{i}", folder / file, about.accelerator, inputs, fp32=fp32, fallback=False)
        for i, (name, (file, fp32)) in enumerate(plan.items())
    }
    jobs["CPU"] = Job("repro-cpu", folder / MODEL, "cpu", inputs)
    results = dict(zip(jobs, runner.run(list(jobs.values())).values(), strict=True))
    gpu = results.get("GPU", results["CPU"])
    answer: dict[str, Any] = {
        "result": repro_script.UNTESTED,
        "why": next((f"{r.detail or r.status} on the {name}" for name, r in results.items() if _failed(r)), ""),
        "adapter": _adapter(gpu),
        "outputs": {},
        "version": gpu.versions.get("ai-edge-litert", "unknown"),
        "reported": "",
    }
    runs = {name: {k: np.asarray(v) for k, v in r.outputs.items()} for name, r in results.items() if r.ok}
    died = {name: (_ENDINGS[r.status], r.detail) for name, r in results.items() if r.status in _ENDINGS}
    told = asdict(about)
    repro_script.conclude(told, expected, runs, died, answer)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print(f"ai-edge-litert {answer['version']}, run through --runner")
        print(f"adapter: {answer['adapter'] or 'none'}")
        repro_script.show(told, expected, runs, answer)
    return text.getvalue(), answer


def _failed(result: JobResult) -> bool:
    return result.status == FAILED or (not result.ok and result.status not in _ENDINGS)


def _adapter(result: JobResult) -> str:
    found = re.search(r"Selected adapter: (.*?)(?:, arch=.*)?$", result.adapter_line or result.log_text, re.MULTILINE)
    return found[1].strip() if found else ""
