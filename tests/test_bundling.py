"""A bug report made of a run, on the real delegate where there is one; and what is left out of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_record
import torch
from small_models import Block, numbers
from test_bisection import Norm, Resize, Table, chain
from torch import nn

from bisect_litert import bisect
from bisect_litert.bundles import papers, privacy, repro_script
from bisect_litert.bundles.bundling import Bundle, HealthyError, Wishes, make_bundle
from bisect_litert.bundles.far_reenacting import run_elsewhere
from bisect_litert.bundles.replaying import replay
from bisect_litert.bundles.reproduction import Reproduction
from bisect_litert.bundles.shrinking import Shrinker, Shrunk
from bisect_litert.cli import main
from bisect_litert.devices.runners import Runner
from bisect_litert.errors import BisectError, RunFolderError, UsageError
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph
from bisect_litert.programs.torch_source import Twin
from bisect_litert.record import RunRecord, Verdict
from bisect_litert.vocabulary import Cause

SECRET = ("jdoe", "build-07")


def run_of(folder: Path, model: nn.Module, inputs: Any, **options: Any) -> Path:
    record = bisect(model, inputs, out=folder, **options)
    if not options.get("no_gpu") and record.target != "gpu":
        pytest.skip("no GPU here")
    return folder


@pytest.fixture(scope="module")
def kernel_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = chain(Block(16), Table(6), Block(16))
    return run_of(tmp_path_factory.mktemp("run") / "kernel", model, numbers(6, 16))


@pytest.fixture(scope="module")
def kernel(kernel_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, list[str]]:
    said: list[str] = []
    (kernel_run / "logs" / "gpu.log").open("a").write(
        "loaded /home/jdoe/secret/libX.so on build-07, C:\\Users\\jdoe\\m.py\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privacy, "own_names", lambda: SECRET)
        return make_bundle(kernel_run, Wishes(tmp_path_factory.mktemp("out") / "kernel"), said.append), said


def script(folder: Path, name: str = "repro.py") -> subprocess.CompletedProcess[str]:
    """As a stranger runs it: elsewhere, without our package on the path."""
    command = [sys.executable, "-I", str(folder / "repro" / name)]
    return subprocess.run(command, capture_output=True, text=True, cwd="/")


def test_the_culprit_alone_and_its_script(kernel: tuple[Bundle, list[str]]) -> None:
    made, said = kernel
    assert made.state == "alone"
    assert [op.split(" ")[0] for op in made.ops] == ["ADD"]
    assert made.model_bytes < 5_000
    done = script(made.folder)
    assert done.returncode == 1, done.stderr
    assert "REPRODUCES: wrong-kernel" in done.stdout
    assert done.stderr == ""
    # Weights and inputs are named, with their sizes, before anything is written.
    assert any(line.startswith("weights in the bundle: ") and "of the model" in line for line in said)
    assert any(line.startswith("input in the bundle: ") and "from the run" in line for line in said)
    for what in ("weight", "input"):
        assert any(line.startswith(f"{what} in the bundle, for PyTorch: ") and "384 bytes" in line for line in said)


def test_the_twin_is_the_culprit_in_pytorch(kernel: tuple[Bundle, list[str]]) -> None:
    made = kernel[0]
    assert made.twin == "alone"
    text = (made.folder / "repro" / "repro_torch.py").read_text()
    assert "aten.add.Tensor(" in text
    assert "bisect_litert" not in text.replace("bisect-litert", "")
    assert not [path for path in (made.folder / "repro").iterdir() if path.suffix in (".pt", ".pkl", ".pth")]
    done = script(made.folder, "repro_torch.py")
    assert done.returncode == 1, done.stderr
    assert "REPRODUCES: wrong-kernel" in done.stdout
    assert "it reproduces." in (made.folder / "ISSUE.md").read_text()


def test_the_twin_of_something_right_ends_with_0(kernel: tuple[Bundle, list[str]], tmp_path: Path) -> None:
    source = kernel[0].folder / "repro"
    (tmp_path / "repro").mkdir()
    for path in source.iterdir():
        (tmp_path / "repro" / path.name).write_bytes(path.read_bytes())
    with np.load(source / "torch_weights.npz") as weights:
        (name,) = weights.files
        row = weights[name] * 0 + weights[name][:1]
    np.savez(tmp_path / "repro" / "torch_weights.npz", **{name: row})
    done = script(tmp_path, "repro_torch.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_right_answer_ends_with_0_and_reads_as_fixed(kernel: tuple[Bundle, list[str]], tmp_path: Path) -> None:
    # A kernel that is right cannot be had here, so the same ops are asked of a constant of one row.
    source = kernel[0].folder / "repro"
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    graph = Graph.read(tmp_path / "model.tflite")
    constant = next(t for t in graph.tensors if t.constant and t.is_float)
    value = graph.constant(constant.index)
    assert value is not None
    row = value * 0 + value[:1]
    edited = Editor(graph)
    edited.fill(constant.index, row)
    edited.graph().write(tmp_path / "model.tflite")
    name = next(path.name for path in tmp_path.glob("in_*.npy"))
    expected = next(tmp_path.glob("expected_*.npy"))
    np.save(expected, np.load(tmp_path / name) + row)
    found = replay(tmp_path, sys.executable)
    assert (found.word, found.exit_code) == ("fixed", 0), found.text


def test_a_damaged_reproduction_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "repro.json").write_text("{}")
    script_file = Path(repro_script.__file__)
    done = subprocess.run([sys.executable, str(script_file), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 125
    assert "incomplete or damaged" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("stem", ["in_", "expected_"])
def test_a_bundle_that_lost_a_file_is_refused_in_a_sentence(
    kernel: tuple[Bundle, list[str]], tmp_path: Path, stem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(kernel[0].folder, tmp_path / "bundle")
    lost = next((tmp_path / "bundle" / "repro").glob(f"{stem}*.npy"))
    lost.write_bytes(lost.read_bytes()[:-7])
    assert main(["replay", str(tmp_path / "bundle")]) == 2
    assert f"{lost.name} of {tmp_path / 'bundle'} is damaged" in capsys.readouterr().err
    lost.unlink()
    assert main(["replay", str(tmp_path / "bundle")]) == 2
    told = capsys.readouterr().err
    assert f"lacks {lost.name}, which its repro.json names." in told
    assert "Traceback" not in told


def test_replay_says_same_of_folder_and_zip(
    kernel: tuple[Bundle, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(kernel[0].folder)]) == 1
    assert capsys.readouterr().out.startswith("same: the fault shows here, too\n")
    assert replay(kernel[0].archive, sys.executable).word == "same"


def test_a_reproduction_is_told_from_another_machine_as_its_script_tells_it(
    kernel: tuple[Bundle, list[str]], tmp_path: Path
) -> None:
    folder = kernel[0].folder / "repro"
    with Runner(tmp_path, 120.0) as runner:
        text, answer = run_elsewhere(folder, Reproduction.load(folder), runner)
    assert answer["result"] == repro_script.SAME
    here = (folder / "output.txt").read_text()
    assert text.splitlines()[1] == here.splitlines()[1]  # the adapter
    assert text[text.index("tolerance") :] == here[here.index("tolerance") :]


def test_a_gpu_that_is_right_says_nothing_of_another(
    kernel_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(kernel_run, tmp_path / "run")
    record = RunRecord.load(kernel_run)
    named = {**record.environment, "device": "a phone", "device ai-edge-litert": "2.1.3"}
    replace(record, environment=named).save(tmp_path / "run")
    monkeypatch.setattr(Shrinker, "shrink", lambda self: Shrunk(None, False, 1))
    said: list[str] = []
    made = make_bundle(tmp_path / "run", Wishes(twin=False), said.append)
    assert made.state == "not tried"
    assert f"seen on {record.placement.adapter} (a phone), and not on this machine's GPU" in (
        made.folder / "ISSUE.md"
    ).read_text().replace("\\", "")
    assert "it is shrunk on this machine's" in said[0]


def test_replay_cannot_test_without_litert(kernel: tuple[Bundle, list[str]], tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    alone = subprocess.run([str(python), str(kernel[0].folder / "repro" / "repro.py")], capture_output=True, text=True)
    assert alone.returncode == 125
    assert "numpy is missing" in alone.stdout
    found = replay(kernel[0].folder, str(python))
    assert (found.word, found.exit_code) == ("cannot test", 125)
    with pytest.raises(UsageError, match="cannot be started"):
        replay(kernel[0].folder, str(tmp_path / "nothing"))
    with pytest.raises(RunFolderError, match="no reproduction"):
        replay(tmp_path, sys.executable)


def test_nothing_names_this_machine_or_its_user(kernel: tuple[Bundle, list[str]], kernel_run: Path) -> None:
    made = kernel[0]
    words = [*SECRET, str(kernel_run.parent), str(Path(sys.prefix)), "/home/", "/tmp/", "site-packages/"]
    checked = 0
    with zipfile.ZipFile(made.archive) as packed:
        for info in packed.infolist():
            content = packed.read(info)
            checked += 1
            for word in words:
                assert word.encode() not in content, f"{word} in {info.filename}"
            assert not Path(info.filename).is_absolute()
    assert checked == sum(path.is_file() for path in made.folder.rglob("*"))
    assert "libX.so" in (made.folder / "logs" / "gpu.log").read_text()


def test_the_issue_is_short_and_says_what_was_tried(kernel: tuple[Bundle, list[str]]) -> None:
    text = (kernel[0].folder / "ISSUE.md").read_text()
    assert text.startswith(f"# {kernel[0].title}\n")
    assert "It reproduces alone" in text
    assert "REPRODUCES: wrong-kernel" in text
    assert "**Conversion**, by the `cpu` run" in text
    assert len(text) < 65_536
    assert {p.name for p in kernel[0].folder.iterdir()} >= {
        "ISSUE.md", "report.md", "run.json", "divergence.png", "accuracy.csv", "junit.xml", "results.sarif", "logs",
        "overlays",
    }  # fmt: skip
    RunRecord.load(kernel[0].folder)  # still one that can be read


def test_without_weights_and_inputs(kernel_run: Path, tmp_path: Path) -> None:
    made = make_bundle(
        kernel_run, Wishes(tmp_path / "out", weights=False, inputs=False, pythons=(sys.executable,)), lambda _: None
    )
    kept = Reproduction.load(kernel_run / "repro" / "1")
    first = Graph.read(kernel_run / "repro" / "1" / "model.tflite")
    secret = [first.model.buffers[first.subgraph.tensors[t.index].buffer].data for t in first.tensors if t.constant]
    content = b"".join(path.read_bytes() for path in (made.folder / "repro").iterdir())
    for data in secret:
        if len(data) > 64:
            assert bytes(data)[:64] not in content
    for t in kept.inputs:
        value = (kernel_run / "repro" / "1" / t.file).read_bytes()
        assert value[-64:] not in content
    assert script(made.folder).returncode == 1
    text = (made.folder / "ISSUE.md").read_text()
    assert "The weights in it are not the model's" in text
    assert text.count("| reproduces |") == 2  # here, and with the other interpreter
    assert made.twin == "alone"
    with (
        np.load(kernel_run / "repro" / "1" / "twin_weights.npz") as ours,
        np.load(made.folder / "repro" / "torch_weights.npz") as theirs,
    ):
        assert all(not np.array_equal(ours[name], theirs[name]) for name in theirs.files)
    (ours_in,) = (kernel_run / "repro" / "1").glob("twin_*.npy")
    (theirs_in,) = (made.folder / "repro").glob("torch_*.npy")
    assert not np.array_equal(np.load(ours_in), np.load(theirs_in))


def test_overflow(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", chain(Block(16), Norm(1e4), Block(16)), numbers(2, 6, 16))
    made = make_bundle(run, Wishes(tmp_path / "out", twin=False), lambda _: None)
    assert made.state == "alone"
    assert made.twin == "none"
    assert "not asked for" in (made.folder / "ISSUE.md").read_text()
    assert len(made.ops) <= 2
    assert script(made.folder).returncode == 1


def test_a_conversion_is_shown_on_the_cpu(tmp_path: Path) -> None:
    model = chain(Block(16), Resize(), nn.Linear(63, 63))
    run = run_of(tmp_path / "run", model, numbers(1, 4, 16), no_gpu=True)
    made = make_bundle(run, Wishes(tmp_path / "out"), lambda _: None)
    assert (made.state, made.twin) == ("alone", "alone")
    assert script(made.folder).returncode == 1
    with pytest.raises(BisectError, match="not tried"):
        make_bundle(run, Wishes(tmp_path / "other", weights=False), lambda _: None)


class Gram(nn.Module):
    """A matmul of a tensor with itself, which the delegate dies of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.transpose(-1, -2)


def test_a_crash_is_survived(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", chain(Block(16), Gram(), nn.Linear(6, 6)), numbers(6, 16))
    if RunRecord.load(run).verdict.cause is not Cause.CRASH:
        pytest.skip("this runtime survives it")
    made = make_bundle(run, Wishes(tmp_path / "out", twin=False), lambda _: None)
    assert (made.state, len(made.ops)) == ("alone", 1)
    done = script(made.folder)
    assert done.returncode == 1, done.stderr
    assert "GPU: the process died" in done.stdout
    assert "may die or hang, and survives that" in (made.folder / "ISSUE.md").read_text()
    assert replay(made.folder, sys.executable).word == "same"


class Pooled(nn.Module):
    """Returns tokens and their mean: the tokens come back as an operand of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(16)

    def forward(self, x: torch.Tensor) -> Any:
        x = x + self.block.fc(x)
        return x.mean(1), x


def test_an_aliased_output_keeps_both_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = run_of(tmp_path / "run", Pooled().eval(), numbers(2, 16, 16))
    if RunRecord.load(run).verdict.cause is not Cause.ALIASED_OUTPUT:
        pytest.skip("this runtime has the buffers right")
    made = make_bundle(run, Wishes(tmp_path / "out", weights=False, twin=False), lambda _: None)
    assert made.state == "alone"
    assert [op.split(" ")[0] for op in made.ops] == ["ADD", "MEAN"]
    assert script(made.folder).returncode == 1
    assert Twin.load(run / "repro" / "1").scopes[-1].what == "the whole model"


def test_what_was_only_emulated_is_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path / "run", chain(Block(16), Norm(1e4)), numbers(2, 6, 16), no_gpu=True)
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "none.json"))
    monkeypatch.setenv("VK_DRIVER_FILES", str(tmp_path / "none.json"))
    made = make_bundle(run, Wishes(tmp_path / "out"), lambda _: None)
    assert made.state == "predicted"
    assert len(made.ops) == 1
    text = (made.folder / "ISSUE.md").read_text()
    assert "Predicted by emulated fp16 on the CPU, not seen on a GPU (there is no GPU here)" in text
    assert made.twin == "not tried"
    assert script(made.folder).returncode == 125
    assert script(made.folder, "repro_torch.py").returncode == 125


# -- what needs no run -------------------------------------------------------------------------------------------------


def test_a_healthy_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample_record.healthy().save(tmp_path)
    with pytest.raises(HealthyError):
        make_bundle(tmp_path, Wishes(), lambda _: None)
    assert main(["bundle", str(tmp_path)]) == 2
    assert "nothing to report" in capsys.readouterr().err


def test_a_run_without_a_reproduction_still_makes_a_report(tmp_path: Path) -> None:
    record = sample_record.overflow()
    (tmp_path / "run").mkdir()
    record.save(tmp_path / "run")
    made = make_bundle(tmp_path / "run", Wishes(), lambda _: None)
    assert made.folder == tmp_path / "run-bundle"
    assert "There is none: the run kept no reproduction of it." in (made.folder / "ISSUE.md").read_text()
    with pytest.raises(RunFolderError, match="exists already"):
        make_bundle(tmp_path / "run", Wishes(), lambda _: None)
    with pytest.raises(UsageError, match="no culprit 9"):
        make_bundle(tmp_path / "run", Wishes(tmp_path / "x", culprit=9), lambda _: None)


def test_a_crash_has_no_block(tmp_path: Path) -> None:
    verdict = Verdict(Cause.CRASH, True, "The GPU crashed. It did.", "Use a newer driver.")
    replace(sample_record.healthy(), verdict=verdict, culprits=()).save(tmp_path)
    made = make_bundle(tmp_path, Wishes(tmp_path / "out"), lambda _: None)
    assert json.loads((made.folder / "results.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "crash"
    assert made.title.endswith(": crash")
    assert papers.ISSUE_FILE in {path.name for path in made.folder.iterdir()}
