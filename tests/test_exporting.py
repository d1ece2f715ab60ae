"""A device that is reached by hand: what it is asked, and what is made of what it brings back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisect_litert import cli
from bisect_litert.devices.device_folder import DeviceFolder, key_of
from bisect_litert.devices.jobs import Job
from bisect_litert.devices.recorded_runner import NOT_YET, RecordedRunner
from bisect_litert.errors import ExportFolderError
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Mark

DATA = Path(__file__).parent / "data"
X = np.arange(24, dtype=np.float32).reshape(3, 8) / 10
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.norm(self.first(x) * 3000))


torch.manual_seed(0)
model = Net().eval()
inputs = (torch.randn(3, 8),)
"""


def job(name: str = "gpu", **options: Any) -> Job:
    return Job(name, DATA / "mlp.tflite", "gpu", {"args_0": X}, **options)


# -- the folder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """An export with one round that asks for one job and what goes with it."""
    with RecordedRunner(tmp_path) as runner:
        results = runner.run([job("gpu-untapped"), job("gpu")])
    assert {(r.status, r.detail) for r in results.values()} == {("not run", NOT_YET)}
    return tmp_path


def entries(folder: Path, number: int = 1) -> dict[str, dict[str, Any]]:
    manifest = json.loads((folder / f"round{number}" / "manifest.json").read_text())
    return {entry["name"]: entry for entry in manifest["entries"]}


def put(folder: Path, entry: dict[str, Any], value: float = 1.0) -> None:
    (folder / "results" / entry["name"]).mkdir(parents=True, exist_ok=True)
    for output in entry["outputs"]:
        np.full(output["shape"], value, output["dtype"]).tofile(folder / "results" / output["file"])


def test_a_round_stands_on_its_own(asked: Path) -> None:
    found = entries(asked)
    # The repetition and the run in fp32 are asked for at once; "gpu" is the same file here, so it is the same entry.
    assert list(found) == ["gpu-untapped", "gpu-again", "gpu-fp32"]
    entry = found["gpu-untapped"]
    round1 = asked / "round1"
    assert hashlib.sha256((round1 / entry["model"]).read_bytes()).hexdigest() == entry["sha256"]
    (given,) = entry["inputs"]
    assert (given["name"], given["shape"], given["dtype"], given["bytes"]) == ("args_0", [3, 8], "float32", 96)
    raw = (round1 / given["raw"]).read_bytes()
    assert hashlib.sha256(raw).hexdigest() == given["sha256"]
    assert raw == X.tobytes()
    np.testing.assert_array_equal(np.load(round1 / given["npy"]), X)
    (output,) = entry["outputs"]
    assert output["bytes"] == 4 * np.prod(output["shape"])
    assert output["file"] == "gpu-untapped/000.raw"
    readme = (round1 / "README.txt").read_text()
    assert "gpu-again" in readme
    assert "bisect-litert ingest" in readme


def test_what_came_back_is_the_answer_and_what_did_not_is_asked_again_once(asked: Path) -> None:
    put(asked, entries(asked)["gpu-untapped"], 2.0)
    done: list[str] = []
    other = job("gpu-control1", env={"LITERT_GPU_DEBUG_END_NODE": "1"})
    with RecordedRunner(asked) as runner:
        results = runner.run([job("gpu-untapped"), job("gpu-again"), other], done.append)
    assert done == ["gpu-untapped"]
    assert results["gpu-untapped"].ok
    assert set(np.unique(results["gpu-untapped"].outputs["output_0"])) == {2.0}
    assert results["gpu-again"].status == results["gpu-control1"].status == "not run"
    assert list(entries(asked, 2)) == ["gpu-control1"]  # the repetition is still in round 1
    assert entries(asked, 2)["gpu-control1"]["environment"] == {"LITERT_GPU_DEBUG_END_NODE": "1"}
    assert "gpu-again, gpu-control1" in runner.notes[0]
    with RecordedRunner(asked) as runner:
        runner.run([other])
    assert not (asked / "round3").exists()


def test_a_job_is_known_by_what_it_runs() -> None:
    same = {key_of(job("gpu")), key_of(job("gpu-untapped"))}
    others = {
        key_of(job("gpu-again")),
        key_of(job(fp32=True)),
        key_of(job(env={"A": "1"})),
        key_of(job(fallback=False)),
    }
    assert len(same) == 1
    assert len(same | others) == 5


@pytest.mark.parametrize("suffix", [".raw", ".npy"])
def test_sizes_and_names_are_checked(asked: Path, suffix: str) -> None:
    entry = entries(asked)["gpu-untapped"]
    (output,) = entry["outputs"]
    folder = asked / "results" / entry["name"]
    folder.mkdir(parents=True)
    wrong = np.zeros(5, np.float32)
    if suffix == ".raw":
        wrong.tofile(folder / "000.raw")
    else:
        np.save(folder / "000.npy", wrong)
    (folder / "x.raw").write_bytes(b"")
    (asked / "results" / "gpu-untaped").mkdir()
    runner = RecordedRunner(asked)
    result = runner.run([job("gpu-untapped")])["gpu-untapped"]
    assert result.status == "failed"
    assert f"no output can be used: output_0 ({'20 bytes' if suffix == '.raw' else 'float32 [5]'}" in result.detail
    assert any("gpu-untaped, gpu-untapped/x.raw" in note for note in runner.notes)
    (folder / "000.raw").unlink(missing_ok=True)
    np.save(folder / "000.npy", np.ones(output["shape"], np.float32))
    assert runner.run([job("gpu-untapped")])["gpu-untapped"].ok


def test_how_a_run_ended_on_the_device(asked: Path) -> None:
    entry = entries(asked)["gpu-untapped"]
    folder = asked / "results" / entry["name"]
    folder.mkdir(parents=True)

    def ended() -> tuple[str, str]:
        result = RecordedRunner(asked).run([job("gpu-untapped")])["gpu-untapped"]
        return result.status, result.detail

    assert ended()[0] == "not run"  # an empty folder says nothing
    (folder / "started").touch()
    assert ended() == ("crashed", "it was started on the device and left nothing")
    (folder / "status.json").write_text('{"status": "failed", "error": "no\\n delegate"}')
    assert ended() == ("failed", "no delegate")
    (folder / "status.json").write_text('{"status": "odd"}')
    assert ended() == ("failed", "status 'odd'")
    (folder / "status.json").write_text("[")
    assert ended()[0] == "failed"


def test_results_of_an_earlier_export_do_not_count(asked: Path) -> None:
    entry = entries(asked)["gpu-untapped"]
    put(asked, entry, 2.0)
    folder = asked / "results" / entry["name"]

    def answered() -> tuple[str, list[str]]:
        runner = RecordedRunner(asked)
        result = runner.run([job("gpu-untapped")])["gpu-untapped"]
        return result.status, [note for note in runner.notes if "export" in note and "next round" not in note]

    (folder / "started").write_text(entry["id"])
    assert answered() == ("ok", [])
    (folder / "started").write_text("another")
    assert answered() == ("not run", ["Results of gpu-untapped were left out: they were made for an earlier export."])
    # A device that says nothing is believed, and doubted by the age of what it brought.
    (folder / "started").write_text("")
    assert answered() == ("ok", [])
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    status, said = answered()
    assert (status, len(said)) == ("ok", 1)
    assert said[0].startswith("Results of gpu-untapped are older than this export.")


def test_what_is_brought_later_wins_whatever_its_format(asked: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    entry = entries(asked)["gpu-untapped"]
    (output,) = entry["outputs"]
    put(asked, entry, 1.0)
    brought = tmp_path_factory.mktemp("brought")
    (brought / entry["name"]).mkdir()
    np.save(brought / entry["name"] / "000.npy", np.full(output["shape"], 3.0, np.float32))
    DeviceFolder(asked).take(brought)
    result = RecordedRunner(asked).run([job("gpu-untapped")])["gpu-untapped"]
    assert set(np.unique(result.outputs["output_0"])) == {3.0}


def test_what_was_never_written_is_counted(asked: Path) -> None:
    entry = entries(asked)["gpu-untapped"]
    put(asked, entry)
    (output,) = entry["outputs"]
    values = np.fromfile(asked / "results" / output["file"], np.uint32)
    values[:3] = 0x7FC0BEEF
    values.tofile(asked / "results" / output["file"])
    result = RecordedRunner(asked).run([job("gpu-untapped")])["gpu-untapped"]
    assert result.unwritten == {"output_0": 3}


def test_results_that_belong_to_something_else_are_refused(
    asked: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "photos").mkdir()
    for folder in (elsewhere, elsewhere / "nowhere"):
        with pytest.raises(ExportFolderError, match="holds no results of this export"):
            DeviceFolder(asked).take(folder)
    (asked / "round1" / "manifest.json").write_text("{")
    with pytest.raises(ExportFolderError, match=r"manifest\.json cannot be read"):
        DeviceFolder(asked)


# -- a whole bisection -------------------------------------------------------------------------------------------------


def device(folder: Path, results: Path, *names: str) -> None:
    command = [sys.executable, str(DATA / "device.py"), str(folder), str(results), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No adapters found" in done.stderr:
        pytest.skip("no GPU here")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a model whose normalisation overflows, and what the GPU here gave for its first round."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(MODEL)
    assert cli.main(["export", str(folder / "net.py"), "--out", str(folder / "export"), "-q"]) == 0
    device(folder / "export" / "round1", folder / "export" / "results")
    return folder


@pytest.fixture
def export(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "export", tmp_path / "export")
    return tmp_path / "export"


def ingest(export: Path, *arguments: str) -> tuple[int, RunRecord]:
    run = export.parent / "run"
    code = cli.main(["ingest", str(export), *arguments, "--out", str(run), "--force", "-q"])
    return code, RunRecord.load(run)


def test_a_device_by_hand_gives_the_verdict_of_a_run_here(
    made: Path, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = export.parent / "here"
    cli.main([str(made / "net.py"), "--out", str(here), "-q"])
    local = RunRecord.load(here)
    capsys.readouterr()
    code, record = ingest(export)
    said = capsys.readouterr()
    assert code == 1
    assert [(c.block, c.cause, c.op) for c in record.culprits] == [(c.block, c.cause, c.op) for c in local.culprits]
    assert [(b.name, b.mark, b.ratio) for b in record.blocks] == [(b.name, b.mark, b.ratio) for b in local.blocks]
    assert record.environment["device"] == "Phone 9"
    assert record.placement.adapter == "Adreno 1"
    assert (record.placement.gpu_ops, record.placement.line) == (
        -1,
        "There is no log that tells where operations ran.",
    )
    assert "round2/ asks for further runs" in said.err
    assert any("no result from the device yet (gpu-healed1" in note for note in record.verdict.notes)
    assert "Phone 9" in said.out
    assert not record.culprits[0].source
    # The next round tells what the first could not: the line, and that the rest is right.
    device(export / "round2", export / "results")
    _, record = ingest(export)
    assert record.culprits[0].source == local.culprits[0].source != ""
    assert "the rest comes out right" in record.verdict.summary


def test_results_of_the_cpu_are_no_verdict_on_the_gpu(export: Path) -> None:
    results, asked = export / "results", entries(export)
    exact = {output["name"]: results / output["file"] for output in asked["gpu-fp32"]["outputs"]}
    for name in ("gpu", "gpu-untapped", "gpu-again"):
        for output in asked[name]["outputs"]:
            shutil.copyfile(exact[output["name"]], results / output["file"])
    code, record = ingest(export)
    assert (code, str(record.verdict.cause)) == (125, "cpu-fallback")
    assert "as exact as fp32" in record.verdict.summary
    # With a log the runtime says it itself.
    for name in ("gpu", "gpu-untapped"):
        (results / name / "log.txt").write_text(
            "WARNING: [gpu_registry.cc:160] GPU accelerator could not be loaded and registered.\n"
            "INFO: [compiled_model.cc:829] Flatbuffer model initialized directly from incoming litert model.\n"
        )
    code, record = ingest(export)
    assert (code, str(record.verdict.cause), record.placement.gpu_ops) == (125, "cpu-fallback", 0)
    assert "no library of a GPU accelerator" in record.verdict.summary


def test_a_partial_dump_is_used_as_far_as_it_goes(export: Path) -> None:
    taps = [output for output in entries(export)["gpu"]["outputs"] if output["name"].startswith("bisect_tap")]
    (export / "results" / taps[0]["file"]).unlink()
    code, record = ingest(export)
    assert code == 1
    assert [(c.block, str(c.cause)) for c in record.culprits] == [("norm", "overflow")]
    assert {b.name: b.mark for b in record.blocks}["first"] is Mark.UNKNOWN
    assert any(f"Results of gpu: 1 of 3 outputs are missing: {taps[0]['name']}." in n for n in record.verdict.notes)


def test_a_tap_of_the_wrong_size_is_not_known_and_no_tensor_that_is_not_there(export: Path) -> None:
    taps = [output for output in entries(export)["gpu"]["outputs"] if output["name"].startswith("bisect_tap")]
    (export / "results" / taps[0]["file"]).write_bytes(b"1234")
    code, record = ingest(export)
    assert (code, [c.block for c in record.culprits]) == (1, ["norm"])
    assert {b.name: b.mark for b in record.blocks}["first"] is Mark.UNKNOWN
    assert any("of the wrong size and left out" in note for note in record.verdict.notes)


def test_a_tapped_run_that_crashed_there_is_no_tapped_run_that_was_right(export: Path) -> None:
    folder = export / "results" / "gpu"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "status.json").write_text('{"status": "crashed", "error": "signal SIGSEGV"}')
    code, record = ingest(export)
    assert (code, record.verdict.diverged) == (1, True)
    assert "right when it is tapped" not in record.verdict.summary
    assert "with taps it does not run" in record.verdict.summary
    assert "SIGSEGV" in record.verdict.summary


def test_without_the_tapped_run_there_is_nothing_to_go_on_from(
    made: Path, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(export / "results" / "gpu")
    code, record = ingest(export)
    assert code == 125
    assert record.verdict.cause == "cannot-test"
    assert f"The tapped graph has no result: {NOT_YET}." in capsys.readouterr().err
    # What it left decides nothing, so it does not stand in the way of the next attempt.
    run = export.parent / "run"
    assert cli.main(["ingest", str(export), "--out", str(run), "-q"]) == 125
    assert "earlier run" not in capsys.readouterr().err
    shutil.copytree(made / "export" / "results" / "gpu", export / "results" / "gpu")
    assert cli.main(["ingest", str(export), "--out", str(run), "-q"]) == 1
    capsys.readouterr()
    assert cli.main(["ingest", str(export), "--out", str(run), "-q"]) == 2
    assert "earlier run" in capsys.readouterr().err


def test_a_model_that_has_changed_is_refused(made: Path, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = export.parent / "changed.py"
    changed.write_text(MODEL.replace("manual_seed(0)", "manual_seed(1)"))
    for arguments, said in (
        ([str(export), "--model", str(changed)], "other results than when it was exported"),
        ([str(made)], "is no export"),
        ([str(export), str(made)], "holds no results of this export"),
    ):
        assert cli.main(["ingest", *arguments, "-q", "--out", str(export.parent / "run")]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["export", str(changed), "--out", str(export), "-q"]) == 2
    assert "exists already" in capsys.readouterr().err
