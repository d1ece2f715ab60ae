"""Runs every command of examples/README.md and holds it to the "# exit code ..." line below it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "examples" / "README.md"
EXPECTED = re.compile(r"# exit code (?P<code>\d+)(, cause (?P<cause>[\w-]+))?(, block (?P<block>\S+))?")


@dataclass(frozen=True)
class Example:
    command: str
    code: int
    cause: str | None
    block: str | None


def read_examples(text: str) -> list[Example]:
    """Every bisect-litert line in a fenced block; each needs its expectation on the next line."""
    examples = []
    for fenced in re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = fenced.splitlines()
        for index, line in enumerate(lines):
            if line.startswith("bisect-litert "):
                said = EXPECTED.fullmatch("".join(lines[index + 1 : index + 2]))
                assert said, f"no expectation below {line!r}"
                examples.append(Example(line, int(said["code"]), said["cause"], said["block"]))
    return examples


EXAMPLES = read_examples(README.read_text(encoding="utf-8"))


def test_the_readme_runs_every_example() -> None:
    named = {Path(word).name for e in EXAMPLES for word in shlex.split(e.command) if word.endswith(".py")}
    assert named == {path.name for path in README.parent.glob("*.py")}


def test_a_command_without_an_expectation_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no expectation below"):
        read_examples("```sh\nbisect-litert examples/healthy.py\n```\n")


@pytest.mark.parametrize("example", EXAMPLES, ids=[e.command for e in EXAMPLES])
def test_example(example: Example, tmp_path: Path) -> None:
    out = tmp_path / "run"
    program, *arguments = shlex.split(example.command)
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    if example.cause is not None:
        command += ["--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if example.cause is None:
        assert done.returncode == example.code, done.stderr
        return
    assert (out / "run.json").is_file(), done.stderr
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if example.cause == "wrong-kernel" and run["target"] != "gpu":
        pytest.skip("no GPU adapter here, and emulation cannot see a wrong kernel")
    assert (run["verdict"]["cause"], done.returncode) == (example.cause, example.code), done.stdout + done.stderr
    assert [c["block"] for c in run["culprits"]][:1] == ([example.block] if example.block else [])
    assert f"in {example.block}" in done.stdout if example.block else "Verdict" in done.stdout
