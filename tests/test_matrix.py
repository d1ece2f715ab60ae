"""The matrix with its real child process, on real models: the codes, the files, what is run again."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bisect_litert.matrix import plan_file
from bisect_litert.matrix.descendants import descendants
from bisect_litert.matrix.plan import Plan
from bisect_litert.matrix.running import Wishes, run_matrix
from bisect_litert.matrix.store import Store
from bisect_litert.matrix.table import Cell, Code, Matrix
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause

ROOT = Path(__file__).parent.parent
MODELS = """
import torch
from helper import WIDTH

class Norm(torch.nn.Module):
    def forward(self, x):
        x = x * 1e4
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).real

class Log(torch.nn.Module):
    def forward(self, x):
        return torch.log(-x.abs() - 1)

inputs = torch.linspace(-2, 3, 12 * WIDTH).reshape(2, 6, WIDTH)

def overflow():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), Norm(), torch.nn.Linear(WIDTH, WIDTH))

def spectrum():
    return Spectrum()

def not_a_number():
    return Log()

def unloadable():
    import no_such_module
"""


def write(folder: Path, toml: str, models: str = MODELS) -> Plan:
    (folder / "models.py").write_text(models)
    (folder / "helper.py").write_text("WIDTH = 16\n")
    (folder / "models.toml").write_text(textwrap.dedent(toml))
    return plan_file.read(folder / "models.toml")


def run(asked: Plan, out: Path) -> tuple[Matrix, list[Cell]]:
    ran: list[Cell] = []
    return run_matrix(asked, Wishes(out), lambda cell, *_: ran.append(cell)), ran


def cell(found: Matrix, model: str, target: str) -> Cell:
    known = found.at(model, target)
    assert known is not None
    return known


def test_real_models_on_real_targets(tmp_path: Path) -> None:
    asked = write(
        tmp_path,
        """
        title = "Real"
        targets = ["cpu", "emulated", "gpu"]
        [[models]]
        model = "models.py:overflow"
        [[models]]
        model = "models.py:spectrum"
        targets = ["cpu", "gpu"]
        [[models]]
        model = "models.py:not_a_number"
        targets = ["gpu"]
        [[models]]
        model = "models.py:unloadable"
        targets = ["gpu"]
        [[models]]
        name = "nowhere"
        model = "models.py:overflow"
        blocks = "no.such.*"
        targets = ["gpu"]
        """,
    )
    out = tmp_path / "out"
    began = time.monotonic()
    found, ran = run(asked, out)
    took = time.monotonic() - began
    assert len(ran) == 8

    fine = cell(found, "overflow", "cpu")
    assert (fine.code, fine.exit_code) == (Code.OK, 0)
    assert 0 < fine.relative_l2 < 1e-4
    emulated = cell(found, "overflow", "emulated")
    assert (emulated.code, emulated.cause, emulated.block) == (Code.DIFF, Cause.OVERFLOW, "1")
    gpu = cell(found, "overflow", "gpu")
    if gpu.code is not Code.T_SKIP:
        assert (gpu.code, gpu.cause, gpu.block) == (Code.DIFF, Cause.OVERFLOW, "1")
        assert gpu.ops == gpu.gpu_ops > 0
        assert gpu.device in (out / "matrix.md").read_text().splitlines()[0]
        assert "models.py:" in gpu.where
    # A failed load is never a failed conversion, and a model that PyTorch cannot run is none either.
    assert cell(found, "unloadable", "gpu").code is Code.L_FAIL
    assert "no_such_module" in cell(found, "unloadable", "gpu").summary
    assert cell(found, "not_a_number", "gpu").code is Code.L_FAIL
    assert cell(found, "not_a_number", "gpu").cause is Cause.REFERENCE
    assert cell(found, "nowhere", "gpu").code is Code.L_FAIL
    assert [cell(found, "spectrum", t).code for t in ("cpu", "gpu")] == [Code.C_FAIL, Code.C_FAIL]
    assert found.exit_code == 1

    # Each cell has its run folder and its log; one file was tested on all targets.
    for target in ("cpu", "emulated", "gpu"):
        known = cell(found, "overflow", target)
        record = RunRecord.load(out / known.run)
        assert record.artefact is not None
        assert (known.size, known.sha256) == (record.artefact.size, record.artefact.sha256)
        assert "convert done" in (out / known.folder / "cell.log").read_text()
    assert len({cell(found, "overflow", t).sha256 for t in ("cpu", "emulated", "gpu")}) == 1
    assert str(tmp_path) not in (out / "matrix.json").read_text()

    rows = list(csv.DictReader((out / "matrix.csv").open()))
    assert [r["code"] for r in rows if r["model"] == "overflow"][:2] == ["OK", "DIFF"]
    suites = ElementTree.parse(out / "junit.xml").getroot()
    assert {s.get("name"): (s.get("tests"), s.get("failures")) for s in suites}["emulated"] == ("1", "1")

    began = time.monotonic()
    again, ran = run(asked, out)
    assert ran == []
    assert again.cells == found.cells
    assert time.monotonic() - began < took / 5

    # What a model imports counts; what only lies beside it does not.
    (tmp_path / "notes.py").write_text("x = 1")
    assert run(asked, out)[1] == []
    (tmp_path / "helper.py").write_text("WIDTH = 16  # still\n")
    only = Wishes(out, targets=("cpu",), only=("unloadable", "spectrum"))
    ran = []
    run_matrix(asked, only, lambda c, *_: ran.append(c))
    assert [c.key for c in ran] == [("spectrum", "cpu")]


def test_a_file_that_a_model_reads_counts(tmp_path: Path) -> None:
    weights = tmp_path / "weights.txt"
    weights.write_text("1")
    asked = write(
        tmp_path,
        'targets = ["cpu"]\n[[models]]\nmodel = "models.py"\n',
        'print(open("weights.txt").read())\nraise RuntimeError("after reading")\n',
    )
    assert [c.code for c in run(asked, tmp_path / "out")[1]] == [Code.L_FAIL]
    assert run(asked, tmp_path / "out")[1] == []
    weights.write_text("2")
    assert len(run(asked, tmp_path / "out")[1]) == 1


def test_only_what_a_model_reads_itself_counts(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    folder.mkdir()
    (folder / "weights.txt").write_text("1")
    asked = write(
        folder,
        'targets = ["cpu", "emulated"]\n[[models]]\nmodel = "models.py"\n',
        "import torch, helper\nmodel = torch.nn.Linear(4, 4)\ninputs = torch.ones(1, 4)\n",
    )
    (folder / "helper.py").write_text('open("weights.txt").read()\n')  # once, for both cells
    found, _ = run(asked, tmp_path / "out")
    assert [c.code for c in found.cells] == [Code.OK, Code.OK]
    for name in ("cpu", "emulated"):
        kept = Store(tmp_path / "out").kept("models", name)
        assert kept is not None
        assert sorted(kept.sources) == ["helper.py", "models.py", "weights.txt"]


def test_a_target_that_is_not_there_is_skipped_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, str(tmp_path / "none.json"))
    asked = write(
        tmp_path,
        """
        targets = ["gpu", { name = "other", python = "/no/such/python" }, { name = "old", runtime = "no-version" }]
        [[models]]
        model = "models.py:overflow"
        """,
    )
    found, _ = run(asked, tmp_path / "out")
    assert [c.code for c in found.cells] == [Code.T_SKIP] * 3
    assert "stands in for the GPU" in found.cells[0].summary
    assert found.cells[0].cause is Cause.NONE  # what stood in overflows, and that is no verdict on a GPU
    assert "no-version" in found.cells[2].summary
    assert found.exit_code == 125


def test_a_child_does_not_outlive_what_started_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        'targets = ["cpu"]\n[[models]]\nmodel = "models.py"\n',
        'import pathlib, time\npathlib.Path("loading").write_text("")\ntime.sleep(300)\n',
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "bisect_litert", "matrix", "models.toml", "-q"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "loading").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    left = descendants(process.pid)
    assert left
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in left)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_command_names_mistakes_and_ends_with_the_worst(tmp_path: Path) -> None:
    write(tmp_path, 'targets = ["cpu"]\n[[models]]\nmodel = "models.py:unloadable"\n')

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bisect_litert", "matrix", *words], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        )  # fmt: skip

    done = call("models.toml")
    assert done.returncode == 125
    assert "[1/1] unloadable on cpu: L-FAIL" in done.stderr
    assert "no_such_module" in done.stdout
    assert (tmp_path / "bisect-matrix-models" / "matrix.html").is_file()
    same = call("models.toml", "-q", "--format", "md")
    assert (same.returncode, same.stderr) == (125, "")
    assert same.stdout == (tmp_path / "bisect-matrix-models" / "matrix.md").read_text()
    (tmp_path / "models.toml").write_text('[[models]]\nmodle = "x"\n')
    wrong = call("models.toml")
    assert wrong.returncode == 2
    assert wrong.stderr == "error: models.toml:2: there is no key 'modle' of model 1.\nDid you mean 'model'?\n"
    assert call("nothing.toml").returncode == 2


def test_a_baseline_that_is_none_is_said(tmp_path: Path) -> None:
    write(tmp_path, '[[models]]\nmodel = "models.py:unloadable"\n')
    (tmp_path / "old.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "bisect_litert", "matrix", "models.toml", "--baseline", "old.json"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "old.json is no matrix.json" in done.stderr
    assert not (tmp_path / "bisect-matrix-models").exists()
