"""The plot drawn by a process that was started early, and by the caller when that one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sample_record import healthy

from bisect_litert.reports import PLOT_FILE, write_all
from bisect_litert.reports.drawing import Drawer

PNG = b"\x89PNG"


def test_the_process_draws_what_stands_in_the_folder(tmp_path: Path) -> None:
    healthy().save(tmp_path)
    drawer = Drawer()
    assert drawer.draw(tmp_path, PLOT_FILE)
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(PNG)
    assert not drawer.draw(tmp_path, PLOT_FILE), "it draws once"


def test_a_failing_process_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Drawer().draw(tmp_path, PLOT_FILE), "there is no record to draw"
    monkeypatch.setattr(sys, "executable", "/nothing/here")
    drawer = Drawer()
    record = write_all(healthy(), tmp_path, drawer)
    assert record.files["plot"] == PLOT_FILE
    assert (tmp_path / PLOT_FILE).read_bytes().startswith(PNG)


def test_closing_leaves_no_process() -> None:
    drawer = Drawer()
    process = drawer._process
    assert isinstance(process, subprocess.Popen)
    drawer.close()
    assert process.poll() is not None
    drawer.close()
