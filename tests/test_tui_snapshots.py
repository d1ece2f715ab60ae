"""Every screen as it looks, at 80x24 and 120x36, from stored runs. `pytest --snapshot-update` takes them anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_record as sample
import sample_run
import textual
from textual.pilot import Pilot
from textual.widgets import Input

from bisect_litert.record import RunRecord
from bisect_litert.tui.app import BisectApp

pytest.importorskip("pytest_textual_snapshot")

TAKEN_WITH = "8.2.8"
"""Another version of textual draws frames and footers in its own way."""

pytestmark = pytest.mark.skipif(
    textual.__version__ != TAKEN_WITH, reason=f"the pictures were taken with textual {TAKEN_WITH}"
)

FILE_RUN = Path(__file__).parent / "data" / "tflite_run.json"
SIZES = [(80, 24), (120, 36)]
SCREENS = {
    "overview": (),
    "block": ("2",),
    "block-not-kept": ("up", "2"),
    "ops": ("3",),
    "evidence": ("4",),
    "tolerances": ("6", "up"),
    "help": ("question_mark",),
    "save": ("s",),
    "filter": ("slash", "b", "1"),
}

Snap = Callable[..., bool]


def keys(*pressed: str) -> Callable[[Pilot[None]], Any]:
    async def press(pilot: Pilot[None]) -> None:
        for line in pilot.app.screen.query(Input):
            line.cursor_blink = False
        for key in pressed:
            await pilot.press(key)
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.pause()

    return press


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "bisect-run-m-20260301-120000"
    sample_run.write(folder)
    return folder


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36"])
@pytest.mark.parametrize("name", SCREENS)
def test_screens(snap_compare: Snap, run: Path, name: str, size: tuple[int, int]) -> None:
    app = BisectApp(RunRecord.load(run), run, light=False)
    assert snap_compare(app, terminal_size=size, run_before=keys(*SCREENS[name]))


@pytest.mark.parametrize(("name", "size"), [("overview", SIZES[1]), ("ops", SIZES[0])], ids=["overview", "ops"])
def test_a_tflite_file_alone(snap_compare: Snap, tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    # `bisect-litert examples/keras_norm.tflite`, as it was written: no module, no source line, another reference.
    folder = tmp_path / "bisect-run-keras_norm-20260301-120000"
    folder.mkdir()
    shutil.copyfile(FILE_RUN, folder / "run.json")
    app = BisectApp(RunRecord.load(folder), folder, light=False)
    assert snap_compare(app, terminal_size=size, run_before=keys(*SCREENS[name]))


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36"])
def test_compare(snap_compare: Snap, run: Path, tmp_path: Path, size: tuple[int, int]) -> None:
    before = tmp_path / "before"
    before.mkdir()
    app = BisectApp(RunRecord.load(run), run, other=sample.healthy(), other_folder=before, light=False)
    assert snap_compare(app, terminal_size=size, run_before=keys())


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x36"])
def test_picker(snap_compare: Snap, run: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    monkeypatch.setenv("TZ", "UTC")
    for name, record in (("b", sample.healthy()), ("c", sample.emulated())):
        folder = run.parent / f"bisect-run-{name}"
        folder.mkdir()
        record.save(folder)
    assert snap_compare(BisectApp(runs=run.parent, light=False), terminal_size=size, run_before=keys())


@pytest.mark.parametrize("name", ["overview", "block", "ops", "evidence"])
def test_light(snap_compare: Snap, run: Path, name: str) -> None:
    app = BisectApp(RunRecord.load(run), run, light=True)
    assert snap_compare(app, terminal_size=(120, 36), run_before=keys(*SCREENS[name]))


@pytest.mark.parametrize("name", ["emulated", "wrong_kernel", "nan_metrics", "healthy"])
def test_other_runs(snap_compare: Snap, name: str) -> None:
    app = BisectApp(getattr(sample, name)(), light=False)
    assert snap_compare(app, terminal_size=(120, 36), run_before=keys())


def test_300_blocks(snap_compare: Snap) -> None:
    app = BisectApp(sample_run.deep(), light=False)
    assert snap_compare(app, terminal_size=(120, 36), run_before=keys())


def test_a_very_wide_terminal(snap_compare: Snap, run: Path) -> None:
    app = BisectApp(RunRecord.load(run), run, light=False)
    assert snap_compare(app, terminal_size=(200, 50), run_before=keys("2"))
