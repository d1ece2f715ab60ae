"""A .tflite file alone, from three converters, on the real delegate and in an interpreter that has no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Cause, Mark

ROOT = Path(__file__).parents[1]
SHIPPED = Path(__file__).parent / "data" / "shipped"
NO_TORCH = """
import sys
from dataclasses import replace
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "litert_torch", "transformers", "tensorflow"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
from bisect_litert.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *map(str, words)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip


def bisected(file: str, *words: object, cwd: Path) -> tuple[RunRecord, subprocess.CompletedProcess[str]]:
    done = run(SHIPPED / file, "--out", "r", "-q", *words, cwd=cwd)
    assert not done.stderr, done.stderr
    return RunRecord.load(cwd / "r"), done


@pytest.mark.parametrize(
    ("file", "block", "op"),
    [
        ("litert_torch.tflite", "Mixer_1", "SQUARED_DIFFERENCE"),
        ("keras.tflite", "block1_norm_1", "SQUARE"),
        ("onnx2tf.tflite", "op 3", "MUL"),
    ],
)
def test_an_overflow_is_found_in_the_files_of_three_converters(tmp_path: Path, file: str, block: str, op: str) -> None:
    record, done = bisected(file, cwd=tmp_path)
    assert done.returncode == 1
    assert (record.target, record.reference) == ("gpu", "LiteRT CPU")
    (culprit,) = record.culprits
    assert (culprit.block, culprit.cause) == (block, Cause.OVERFLOW)
    assert [o.type for o in culprit.ops if o.index == culprit.op] == [op]
    assert culprit.confidence == "high"
    assert culprit.source == ""
    assert [b.mark for b in record.blocks if b.order < _order(record, block)] == [Mark.OK] * _order(record, block)
    assert "PyTorch" not in done.stdout.partition("Next")[0]
    assert "Blocks against LiteRT CPU" in done.stdout
    assert "PyTorch" not in (tmp_path / "r" / "report.md").read_text().partition("## Next")[0]


def _order(record: RunRecord, block: str) -> int:
    return next(b.order for b in record.blocks if b.name == block)


def test_a_healthy_signature_is_left_alone_and_may_be_chosen(tmp_path: Path) -> None:
    record, done = bisected("two_signatures.tflite", "--signature", "encode", cwd=tmp_path)
    assert (done.returncode, record.verdict.cause) == (0, Cause.NONE)
    assert [b.name for b in record.blocks] == ["layer_0", "layer_1", "layer_2"]
    assert [o.name for o in record.outputs] == ["state"]


def test_op_positions_may_be_asked_for_where_there_are_names(tmp_path: Path) -> None:
    record, _ = bisected("keras.tflite", "--blocks", "ops 0-1", "--blocks", "ops 2-6", cwd=tmp_path)
    assert [c.block for c in record.culprits] == ["ops 2-6"]


def test_without_a_gpu_the_emulated_run_stands_in(tmp_path: Path) -> None:
    record, done = bisected("litert_torch.tflite", "--no-gpu", cwd=tmp_path)
    assert done.returncode == 1
    assert [(c.block, c.cause) for c in record.culprits] == [("Mixer_1", Cause.OVERFLOW)]


def test_blocks_are_listed_without_running(tmp_path: Path) -> None:
    done = run("blocks", SHIPPED / "litert_torch.tflite", cwd=tmp_path)
    assert done.returncode == 0
    assert "* Mixer_1" in done.stdout
    assert "Mixer_1.pre_norm" in done.stdout


def test_inputs_that_make_nan_on_the_cpu_are_refused(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "in.npz", image=np.full((1, 8, 8, 3), 3e38, np.float32))
    done = run(SHIPPED / "keras.tflite", "--inputs", "in.npz", "--out", "r", "-q", cwd=tmp_path)
    assert done.returncode == 125
    assert "LiteRT's own CPU result holds NaN" in done.stderr


def test_one_subject_serves_several_runs(tmp_path: Path) -> None:
    from bisect_litert import entrances
    from bisect_litert.request import BisectRequest
    from bisect_litert.subjects.shared import SharedSubject

    request = BisectRequest(model=str(SHIPPED / "keras.tflite"), no_gpu=True)
    subject = SharedSubject(entrances.load_subject(request, lambda _: None))
    for name in ("one", "two"):
        record = entrances.bisect_subject(subject, replace(request, out=tmp_path / name), lambda _: None)
        assert [(c.block, c.cause) for c in record.culprits] == [("block1_norm_1", Cause.OVERFLOW)]


def test_what_needs_the_model_says_so(tmp_path: Path) -> None:
    done = run(SHIPPED / "keras.tflite", "--predict", cwd=tmp_path)
    assert done.returncode == 2
    assert "is a .tflite file, and this needs the PyTorch model" in done.stderr
    done = run(SHIPPED / "keras.tflite", "--tflite", SHIPPED / "onnx2tf.tflite", cwd=tmp_path)
    assert done.returncode == 2
    assert "is a .tflite file itself" in done.stderr
