"""The fixture, as a test file of a user meets it: run by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sample_record
from test_quantised import widened_by_ops

from bisect_litert import pytest_plugin

ROOT = Path(__file__).parent.parent
USER = """
import pytest
import torch

class Norm(torch.nn.Module):
    def forward(self, x):
        x = x * 1e4
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

x = torch.linspace(-2, 3, 192).reshape(2, 6, 16)

def test_right(bisect_litert):
    record = bisect_litert(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()).eval(), x)
    assert not record.verdict.diverged

def test_wrong(bisect_litert):
    bisect_litert(torch.nn.Sequential(torch.nn.Linear(16, 16), Norm()).eval(), (x,), blocks="*", name="net")

@pytest.mark.skipif(not __import__("pathlib").Path("weight_only.tflite").exists(), reason="for one test only")
def test_built(bisect_litert):
    bisect_litert("weight_only.tflite")

def test_unusable(bisect_litert):
    bisect_litert("no_such_file.py")
"""


def call(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_user.py").write_text(USER)
    known = any(point.name == "bisect_litert" for point in entry_points(group="pytest11"))
    plugin = [] if known else ["-p", "bisect_litert.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_user.py", *words],
        cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def test_a_divergence_fails_with_a_message_a_person_can_read(tmp_path: Path) -> None:
    done = call(tmp_path, "--litert-emulated")
    assert "2 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "OVERFLOW in 1" in done.stdout
    assert "65504" in done.stdout
    assert "✗ culprit" in done.stdout
    assert "bisect-run-1" in done.stdout
    assert "Traceback" not in done.stdout
    assert "could not test the model: There is no file no_such_file.py." in done.stdout


def test_what_does_not_run_at_all_has_not_passed(tmp_path: Path) -> None:
    widened_by_ops(tmp_path)
    done = call(tmp_path, "-k", "built")
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert "Shape mismatch" in done.stdout


def test_without_a_gpu_it_is_skipped(tmp_path: Path) -> None:
    none = str(tmp_path / "none.json")
    done = call(tmp_path, "-k", "right", "-rs", VK_DRIVER_FILES=none, VK_ICD_FILENAMES=none)
    assert "1 skipped" in done.stdout, done.stdout + done.stderr
    assert "stands in for the GPU" in done.stdout


def test_or_does_as_it_is_told() -> None:
    record = sample_record.overflow()
    note = "No adapter. The emulated fp16 run stands in for the GPU."
    record = replace(record, verdict=replace(record.verdict, notes=(note,)))

    def told(wish: str) -> None:
        config: Any = SimpleNamespace(getini=lambda _: wish)
        pytest_plugin._without_gpu(config, record)

    with pytest.raises(pytest.skip.Exception, match="No adapter"):
        told("skip")
    with pytest.raises(pytest.fail.Exception, match="No adapter"):
        told("fail")
    with pytest.raises(pytest.UsageError, match="skip or emulate"):
        told("hope")
    told("emulate")


def test_it_is_announced_to_pytest_and_imports_nothing_heavy() -> None:
    assert 'bisect_litert = "bisect_litert.pytest_plugin"' in (ROOT / "pyproject.toml").read_text()
    code = "import sys, bisect_litert.pytest_plugin; print([n for n in ('torch', 'numpy', 'rich') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout == "[]\n", done.stderr
