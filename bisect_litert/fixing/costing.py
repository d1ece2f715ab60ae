"""What a fix costs: ops, file size, and times on CPU and GPU before and after, measured against each other."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np

from bisect_litert.graphs.graph import Graph
from bisect_litert.records.fix_record import Costs

REPEATS = 15
BUDGET = 20.0
"""Seconds after which no further round of runs is begun."""
_SCRIPT = Path(__file__).with_name("stopwatch.py")


@dataclass(frozen=True, slots=True)
class Timing:
    """One way to run one file."""

    model: Path
    accelerator: str
    env: Mapping[str, str]


def seconds(runs: Mapping[str, Timing], inputs: Mapping[str, np.ndarray], work: Path) -> dict[str, float]:
    """Times runs against each other in one process of its own.

    Args:
        runs: By name.
        inputs: The models' inputs, by signature name.
        work: Folder for the request.

    Returns:
        Median seconds by name; what could not be timed is left out.
    """
    work.mkdir(parents=True, exist_ok=True)
    stored = {}
    for number, (name, array) in enumerate(inputs.items()):
        np.save(work / f"input-{number}.npy", array)
        stored[name] = str(work / f"input-{number}.npy")
    request = {
        "inputs": stored,
        "runs": {
            name: {"model": str(run.model), "accelerator": run.accelerator, "env": dict(run.env)}
            for name, run in runs.items()
        },
        "repeats": REPEATS,
        "budget": BUDGET,
    }
    path = work / "stopwatch.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    runtime = work / "runtime"  # Vulkan drivers want a folder only its owner can read
    runtime.mkdir(mode=0o700, exist_ok=True)
    try:
        answer = subprocess.run(
            [sys.executable, str(_SCRIPT), str(path)], capture_output=True, text=True, timeout=10 * BUDGET,
            env={"XDG_RUNTIME_DIR": str(runtime), **os.environ},
        )  # fmt: skip
        measured = json.loads(answer.stdout.strip().splitlines()[-1])["seconds"]
    except (subprocess.TimeoutExpired, ValueError, IndexError, KeyError):
        return {}
    return {name: statistics.median(times) for name, times in measured.items() if times}


def costs(before: Path, after: Path, inputs: Mapping[str, np.ndarray], work: Path, *, gpu: bool) -> Costs:
    """Compares two files that take the same inputs.

    Args:
        before: The model as it was.
        after: The fixed model.
        inputs: By signature name.
        work: Folder for the request.
        gpu: Whether to time the GPU as well.
    """
    files = (("before", before), ("after", after))
    cpu = {f"{name}/cpu": Timing(path, "cpu", {}) for name, path in files}
    both = {f"{name}/gpu": Timing(path, "gpu", {}) for name, path in files}
    # A model that kills the runtime on the GPU takes the others' times with it.
    found = (seconds(cpu | both, inputs, work) if gpu else {}) or seconds(cpu, inputs, work)

    def pair(kind: str) -> tuple[float, float]:
        return found.get(f"before/{kind}", nan), found.get(f"after/{kind}", nan)

    return Costs(
        ops=(len(Graph.read(before).ops), len(Graph.read(after).ops)),
        bytes=(before.stat().st_size, after.stat().st_size),
        cpu_seconds=pair("cpu"),
        gpu_seconds=pair("gpu"),
        repeats=REPEATS,
    )
