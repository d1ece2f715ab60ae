"""Cells in child processes: what each kind of end comes to, what is run again, and what a stopped run keeps.

The child process is faked here (data/fake_child.py); test_matrix.py runs the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bisect_litert.errors import ExitCode, UsageError
from bisect_litert.matrix import cell_process, plan, running
from bisect_litert.matrix.descendants import descendants
from bisect_litert.matrix.plan import Model, Plan
from bisect_litert.matrix.running import Wishes, run_matrix
from bisect_litert.matrix.store import MatrixFolderError
from bisect_litert.matrix.table import Cell, Code, Matrix
from bisect_litert.vocabulary import Cause

FAKE = (sys.executable, str(Path(__file__).parent / "data" / "fake_child.py"))
ALL = ("cpu", "emulated", "gpu", "gpu-fp32")


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cell_process, "CHILD", FAKE)
    monkeypatch.chdir(tmp_path)


def matrix_of(folder: Path, models: dict[str, str], targets: tuple[str, ...] = ALL, **fields: object) -> Plan:
    """A plan whose models are what the fake child is to do, a word per target."""
    rows = tuple(Model(name, words, targets=targets, **fields) for name, words in models.items())  # type: ignore[arg-type]
    return Plan("Test", folder, rows, tuple(plan.KNOWN_TARGETS[t] for t in targets), "models.toml")


def run(asked: Plan, folder: Path, **wishes: object) -> tuple[Matrix, list[Cell]]:
    ran: list[Cell] = []
    found = run_matrix(asked, Wishes(folder / "out", **wishes), lambda cell, *_: ran.append(cell))  # type: ignore[arg-type]
    return found, ran


def codes(found: Matrix) -> dict[str, list[str]]:
    return {m: [str(c.code) for c in found.cells if c.model == m] for m in found.models}


def starts(folder: Path) -> list[str]:
    path = folder / "started.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_every_end_has_its_code(tmp_path: Path) -> None:
    asked = matrix_of(
        tmp_path,
        {
            "fine": "ok diff refused ok",
            "unloadable": "load",
            "inconvertible": "ok convert",
            "dies-loading": "crash@load_model",
            "dies-in-torch": "crash@torch",
            "dies-converting": "crash@convert",
            "dies-running": "ok crash@search ok diff",
        },
    )
    found, _ = run(asked, tmp_path)
    table = codes(found)
    assert table["fine"] == ["OK", "DIFF", "REJECT", "OK"]
    assert table["unloadable"] == ["L-FAIL"] * 4
    # A conversion has no target: what one met holds for those behind it, and the OK before stands.
    assert table["inconvertible"] == ["OK", "C-FAIL", "C-FAIL", "C-FAIL"]
    assert table["dies-in-torch"] == ["L-FAIL"] * 4
    assert table["dies-converting"] == ["C-FAIL"] * 4
    assert table["dies-running"] == ["OK", "T-FAIL", "OK", "DIFF"]
    died = found.at("dies-running", "emulated")
    assert died is not None
    assert "SIGSEGV" in died.summary
    assert "search" in died.summary
    assert died.cause is Cause.CRASH
    # One child for all of a model, and a second one only where the first died.
    assert [line for line in starts(tmp_path) if line.startswith(("fine", "unload", "dies-c", "dies-r"))] == [
        "fine cpu emulated gpu gpu-fp32",
        "unloadable cpu emulated gpu gpu-fp32",
        "dies-converting cpu emulated gpu gpu-fp32",
        "dies-running cpu emulated gpu gpu-fp32",
        "dies-running gpu gpu-fp32",
    ]


def test_a_cell_has_a_folder_a_log_and_nothing_half_done(tmp_path: Path) -> None:
    found, _ = run(matrix_of(tmp_path, {"a": "ok crash@search load"}, ALL[:3]), tmp_path)
    for cell in found.cells:
        place = tmp_path / "out" / cell.folder
        assert sorted(p.name for p in place.iterdir() if p.name != "run") == ["cell.json", "cell.log"]
        assert (place / "cell.log").read_text()
    left = [p for p in (tmp_path / "out" / "cells").rglob("*") if p.name.startswith(".")]
    assert left == []
    assert Matrix.load(tmp_path / "out").cells == found.cells


@pytest.mark.parametrize(
    ("word", "code"), [("hang@torch", "L-FAIL"), ("hang@convert", "C-FAIL"), ("hang@run", "T-FAIL")]
)
def test_a_cell_that_never_ends_is_ended(tmp_path: Path, word: str, code: str) -> None:
    found, _ = run(matrix_of(tmp_path, {"a": word}, ("cpu",), cell_limit=1.0), tmp_path)
    assert codes(found)["a"] == [code]
    assert "no end after 1 s" in found.cells[0].summary


def test_one_that_ignores_interrupts_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_process, "_GRACE", 0.5)
    found, _ = run(matrix_of(tmp_path, {"a": "stubborn@run ok"}, ALL[:2], cell_limit=1.0), tmp_path)
    assert codes(found)["a"] == ["T-FAIL", "OK"]
    assert descendants(os.getpid()) == []


def test_a_second_run_runs_nothing(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "ok diff", "b": "load", "c": "crash@run"}, ALL[:2])
    first, ran = run(asked, tmp_path)
    assert len(ran) == 6
    before = starts(tmp_path)
    second, ran = run(asked, tmp_path)
    assert ran == []
    assert starts(tmp_path) == before
    assert second.cells == first.cells


def test_only_what_changed_is_run_again(tmp_path: Path) -> None:
    for name in ("weights.bin", "helper.py"):
        (tmp_path / name).write_text("1")
    asked = matrix_of(tmp_path, {"a": "ok", "b": "ok"}, ("cpu", "gpu"), depends=("weights.bin",))
    run(asked, tmp_path)
    _, ran = run(asked, tmp_path)
    assert ran == []
    more = replace(asked, models=(replace(asked.models[0], seed=3), asked.models[1]))
    _, ran = run(more, tmp_path)
    assert [c.key for c in ran] == [("a", "cpu"), ("a", "gpu")]
    (tmp_path / "weights.bin").write_text("2")
    _, ran = run(more, tmp_path)
    assert len(ran) == 4
    other = replace(more, targets=(asked.targets[0], replace(asked.targets[1], runner="elsewhere")))
    _, ran = run(other, tmp_path)
    assert [c.key for c in ran] == [("a", "gpu"), ("b", "gpu")]
    # A name, a limit, a reason to skip others: no result depends on them.
    renamed = replace(other, title="New", models=tuple(replace(m, cell_limit=5.0) for m in more.models))
    _, ran = run(renamed, tmp_path)
    assert ran == []


def test_another_version_of_the_runtime_runs_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.records import environment

    asked = matrix_of(tmp_path, {"a": "ok"}, ("cpu",))
    run(asked, tmp_path)
    now = environment.describe()
    monkeypatch.setattr(environment, "describe", lambda: {**now, "ai-edge-litert": "9.9"})
    assert len(run(asked, tmp_path)[1]) == 1
    assert run(asked, tmp_path)[1] == []


def test_retry_runs_what_failed_and_fresh_runs_all(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "ok", "b": "load", "c": "crash@run"}, ("cpu",))
    run(asked, tmp_path)
    assert [c.model for c in run(asked, tmp_path, retry=True)[1]] == ["b", "c"]
    assert [c.model for c in run(asked, tmp_path, fresh=True)[1]] == ["a", "b", "c"]


def test_some_models_and_targets_only(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"net.a": "ok", "net.b": "ok", "other": "ok"}, ("cpu", "gpu"))
    found, ran = run(asked, tmp_path, only=("net.*",), targets=("gpu",))
    assert [c.key for c in ran] == [("net.a", "gpu"), ("net.b", "gpu")]
    assert codes(found) == {"net.a": ["OPEN", "OK"], "net.b": ["OPEN", "OK"], "other": ["OPEN", "OPEN"]}
    assert found.exit_code == ExitCode.OK
    with pytest.raises(UsageError, match="nett"):
        run(asked, tmp_path, only=("nett.*",))
    with pytest.raises(UsageError, match="'gpuu'"):
        run(asked, tmp_path, targets=("gpuu",))


def test_skipped_on_purpose_and_for_want_of_a_package(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "ok"}, ("cpu",), needs=("json", "no_such_package"))
    found, _ = run(asked, tmp_path)
    assert found.cells[0].code is Code.SKIP
    assert "no_such_package is not installed" in found.cells[0].summary
    assert found.exit_code == ExitCode.OK
    # It is there now.
    assert codes(run(matrix_of(tmp_path, {"a": "ok"}, ("cpu",), needs=("json",)), tmp_path)[0]) == {"a": ["OK"]}
    found, ran = run(matrix_of(tmp_path, {"b": "ok"}, ("cpu",), skip="flaky until #3"), tmp_path)
    assert (found.cells[0].code, found.cells[0].summary, ran) == (Code.SKIP, "flaky until #3", [])


def test_the_exit_code_says_the_worst(tmp_path: Path) -> None:
    for words, code in (("ok", 0), ("ok diff", 1), ("ok load", 125), ("ok refused", 125), ("diff load", 1)):
        folder = tmp_path / words.replace(" ", "-")
        folder.mkdir()
        assert run(matrix_of(folder, {"a": words}, ("cpu", "emulated")), folder)[0].exit_code == code


def test_jobs_run_at_the_same_time(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "hang@run", "b": "hang@run"}, ("cpu",), cell_limit=2.0)
    began = time.monotonic()
    run(asked, tmp_path, jobs=2)
    assert time.monotonic() - began < 3.9


def test_the_table_is_rewritten_after_every_cell(tmp_path: Path) -> None:
    seen: list[dict[str, list[str]]] = []

    def look(*_: object) -> None:
        seen.append(codes(Matrix.load(tmp_path / "out")))
        for name in ("matrix.md", "matrix.csv", "matrix.html", "junit.xml"):
            assert (tmp_path / "out" / name).stat().st_size

    run_matrix(matrix_of(tmp_path, {"a": "ok diff"}, ALL[:2]), Wishes(tmp_path / "out"), look)
    assert seen == [{"a": ["OK", "OPEN"]}, {"a": ["OK", "DIFF"]}]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_keeps_what_is_finished_and_the_next_run_goes_on(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "models.toml").write_text(
        textwrap.dedent(
            """
            targets = ["cpu", "emulated"]
            [[models]]
            name = "a"
            model = "ok"
            [[models]]
            name = "b"
            model = "ok hang@run"
            """
        )
    )
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bisect_litert.matrix import cell_process
cell_process.CHILD = {FAKE!r}
from bisect_litert.cli import main
sys.exit(main(["matrix", "models.toml", "--out", "out"]))
"""
    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    for _ in range(3):
        assert process.stderr.readline().startswith("[")
    time.sleep(0.5)
    process.send_signal(sent)
    out, err = process.communicate(timeout=30)
    assert process.returncode == ExitCode.CANNOT_TEST
    assert "goes on from there" in err
    assert "3 OK" in out
    found = Matrix.load(tmp_path / "out")
    assert codes(found) == {"a": ["OK", "OK"], "b": ["OK", "OPEN"]}
    (tmp_path / "started.txt").unlink()
    again = matrix_of(tmp_path, {"a": "ok", "b": "ok hang@run"}, ALL[:2], cell_limit=1.0)
    found, ran = run(again, tmp_path)
    assert [c.key for c in ran] == [("b", "emulated")]
    assert starts(tmp_path) == ["b emulated"]


def test_a_run_that_was_killed_goes_on_too(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "ok", "b": "hang@run"}, ("cpu",), cell_limit=60.0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        running.run_matrix(asked, Wishes(tmp_path / "out"), lambda *_: os.write(writer, b"x") and None)
        os._exit(0)
    assert os.read(reader, 1) == b"x"
    deadline = time.monotonic() + 20
    while len(starts(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    orphans = descendants(child)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for pid in orphans:  # the fake has no parent to watch; the real child ends by itself (test_matrix.py)
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "started.txt").unlink()
    found, ran = run(matrix_of(tmp_path, {"a": "ok", "b": "hang@run"}, ("cpu",), cell_limit=1.0), tmp_path)
    assert [c.key for c in ran] == [("b", "cpu")]
    assert codes(found) == {"a": ["OK"], "b": ["T-FAIL"]}
    assert not list((tmp_path / "out" / "cells").glob("*/.*"))


def test_one_matrix_at_a_time_in_a_folder(tmp_path: Path) -> None:
    asked = matrix_of(tmp_path, {"a": "hang@run"}, ("cpu",), cell_limit=3.0)
    first = threading.Thread(target=run, args=(asked, tmp_path))
    first.start()
    deadline = time.monotonic() + 20
    while not starts(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(MatrixFolderError, match="Another matrix"):
        run(asked, tmp_path)
    first.join()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(MatrixFolderError, match="not made by"):
        run(matrix_of(tmp_path, {"a": "ok"}), tmp_path)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_a_disk_that_is_full_is_said_and_what_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = matrix_of(tmp_path, {"a": "ok", "b": "ok"}, ("cpu",))
    replace_file = os.replace

    def full(source: Path | str, target: Path | str) -> None:
        if str(target).endswith("cells/b/cpu"):
            raise OSError(28, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(MatrixFolderError, match="No space left"):
        run(asked, tmp_path)
    monkeypatch.setattr(os, "replace", replace_file)
    assert [c.model for c in run(asked, tmp_path)[1]] == ["b"]
