"""A small model with a planted overflow through the whole pipeline, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from bisect_litert.errors import ExitCode
from bisect_litert.records.checkup import Check, State

DATA = Path(__file__).parents[1] / "data"
BLOCK, CAUSE = "overflow", "overflow"
"""What is planted in it."""
LIMIT = 300.0
"""Ten seconds on a machine that has seen it before; a software driver compiles its kernels the first time."""


def run() -> Iterator[Check]:
    """Bisects the model in PyTorch where that is installed, else the .tflite file made of it."""
    model = DATA / ("self_test.py" if _torch() else "self_test.tflite")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as folder:
        command = [sys.executable, "-m", "bisect_litert", str(model), "--out", f"{folder}/run", "--json", "-q"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=LIMIT - 5, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            fix = "Try again: what was compiled is kept. If it hangs again, see which check above is slow."
            yield Check("self-test", State.BAD, f"did not end within {LIMIT:g} s", fix)
            return
    yield judge(model.name, done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def judge(model: str, code: int, answer: str, complaint: str, seconds: float) -> Check:
    """Says whether the planted fault was found, and no other."""
    facts = {"model": model, "seconds": f"{seconds:.1f}"}
    try:
        record = json.loads(answer)
        found = [(culprit["block"], culprit["cause"]) for culprit in record["culprits"]]
        target = str(record["target"])
    except (ValueError, KeyError, TypeError):
        lines = complaint.strip().splitlines()
        said = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else f"exit code {code}")
        return Check("self-test", State.BAD, f"{model} failed: {said.removeprefix('error: ')}", _REPORT, facts)
    facts["target"] = target
    if code == ExitCode.DIVERGED and found == [(BLOCK, CAUSE)]:
        said = f"{model}: the planted overflow was found on {target} in {seconds:.0f} s"
        return Check("self-test", State.OK, said, facts=facts)
    got = ", ".join(f"{cause} in {block}" for block, cause in found) or f"no culprit ({record['verdict']['cause']})"
    said = f"{model}: wanted overflow in {BLOCK}, got {got} on {target}"
    return Check("self-test", State.BAD, said, _REPORT, facts)


_REPORT = "Put the checks above right first; if all are fine, report it with `bisect-litert doctor --json`."


def _torch() -> bool:
    try:
        return bool(metadata.version("torch") and metadata.version("litert-torch"))
    except metadata.PackageNotFoundError:
        return False
