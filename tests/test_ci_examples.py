"""The examples for CI: the workflow parses, its commands are ours as they stand, its action steps are pinned."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from bisect_litert.cli import cli

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / "examples" / "ci" / "matrix.yml"
COMMANDS = [
    line.strip().removeprefix("run: ") for line in WORKFLOW.read_text().splitlines() if "bisect-litert matrix" in line
]


def test_the_workflow_is_a_workflow() -> None:
    yaml = pytest.importorskip("yaml")
    data = yaml.safe_load(WORKFLOW.read_text())
    (job,) = data["jobs"].values()
    assert job["runs-on"].startswith("ubuntu-")
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bisect-litert")])
def test_its_commands_are_understood(command: str) -> None:
    program, name, *words = shlex.split(command)
    assert program == "bisect-litert"
    with cli.commands[name].make_context(name, words) as context:
        assert isinstance(context, click.Context)
        assert context.params["baseline"] == Path("baseline/matrix.json")


def test_there_is_one() -> None:
    assert COMMANDS


def test_its_test_suite_passes(tmp_path: Path) -> None:
    known = any(point.name == "bisect_litert" for point in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", "bisect_litert.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "--litert-emulated"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(WORKFLOW.with_name("test_models.py"))],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "s" not in done.stdout.split()[0]  # none was skipped
