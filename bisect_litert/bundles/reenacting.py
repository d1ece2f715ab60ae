"""Runs a reproduction as its reader will: as a script of its own, in a fresh process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bisect_litert.bundles import repro_script
from bisect_litert.errors import UsageError
from bisect_litert.versions.interpreters import foreign_environment

SCRIPT = "repro.py"
TIME_LIMIT = 300.0
"""Seconds that one run may take."""


def run_script(folder: Path, scratch: Path, python: str = sys.executable) -> tuple[str, dict[str, Any]]:
    """Runs our own copy of the script on a reproduction's folder, in a process of its own.

    Nothing of the folder is executed: what came in a bundle from elsewhere is data.

    Args:
        folder: Holds model.tflite and repro.json.
        scratch: For what the script measures.
        python: The interpreter, which needs numpy and ai-edge-litert only.

    Returns:
        What it printed, and what it measured; "why" says what went wrong when it died.
    """
    script = shutil.copyfile(Path(repro_script.__file__), scratch / SCRIPT)  # beside none of our modules
    return _answer([python, str(script), str(folder.resolve())], scratch)


def run_twin(script: Path, scratch: Path) -> tuple[str, dict[str, Any]]:
    """Runs a PyTorch twin that we wrote, in a process of its own, with this interpreter."""
    return _answer([sys.executable, str(script.resolve())], scratch)


def _answer(command: list[str], scratch: Path) -> tuple[str, dict[str, Any]]:
    target = scratch / "answer.json"
    target.unlink(missing_ok=True)
    command = [*command, "--json", str(target)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT,
            env=_environment(scratch, command[0]),
        )
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]  # the last line names the error
        text, why = done.stdout, f"it ended with {done.returncode}{': ' + said[-1][:300] if said else ''}"
    except subprocess.TimeoutExpired:
        text, why = "", f"it gave no answer within {TIME_LIMIT:g} s"
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started: {error.strerror}.", hint="Give a Python interpreter."
        ) from None
    try:
        return text, dict(json.loads(target.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return text, {"result": repro_script.UNTESTED, "why": why}


def _environment(scratch: Path, python: str) -> dict[str, str]:
    runtime = scratch / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    given = os.environ if python == sys.executable else foreign_environment()
    return {"XDG_RUNTIME_DIR": str(runtime), **given, "PYTHONIOENCODING": "utf-8"}
