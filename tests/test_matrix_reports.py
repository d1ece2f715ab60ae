"""The table in its forms: what stands in them, and that names from a stranger's file do no harm there."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import sample_record
from rich.console import Console
from test_matrix_baseline import DIFF, OK, PARTIAL, REJECT, SKIP, T_SKIP, failed, matrix

from bisect_litert.matrix.baseline import Baseline
from bisect_litert.matrix.reports import junit, markdown, page, pictures, spreadsheet, terminal, words
from bisect_litert.matrix.store import Store
from bisect_litert.matrix.table import Cell, Code, Matrix, MatrixFileError
from bisect_litert.reports import write_all

ALL = (OK, DIFF, PARTIAL, REJECT, failed(Code.L_FAIL), failed(Code.C_FAIL), failed(Code.T_FAIL), T_SKIP, SKIP)
NASTY = '<script>alert("x")</script>|`*&\x1b[31m'


@pytest.fixture
def whole() -> Matrix:
    """Every code once, one row each."""
    cells = [
        replace(c, model=f"m{i}", device="Mali-G715" if i < 3 else "", runtime="2.3.0", summary=f"because {i}")
        for i, c in enumerate(ALL)
    ]
    return replace(matrix(*cells, Cell("m9", "t", Code.OPEN)), title="Family", plan="models.toml")


VOID = ("meta", "img", "br", "link", "input")


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.scripts = 0
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)
        self.scripts += tag == "script"
        for name, value in attributes:
            if name in ("src", "href"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_the_device_stands_in_the_first_line(whole: Matrix) -> None:
    assert "Mali-G715, ai-edge-litert 2.3.0 (t)" in markdown.render(whole).splitlines()[0]
    console = Console(width=120)
    with console.capture() as capture:
        terminal.render(whole, console, Path("out"))
    assert "Mali-G715, ai-edge-litert 2.3.0" in capture.get().splitlines()[0]
    assert json.loads(whole.to_json())["device"] == "Mali-G715, ai-edge-litert 2.3.0 (t)"


def test_every_code_that_occurs_is_explained(whole: Matrix) -> None:
    texts = [markdown.render(whole), page.render(whole, Path("none"))]
    console = Console(width=200)
    with console.capture() as capture:
        terminal.render(whole, console, Path("out"))
    for text in [*texts, capture.get()]:
        for says in ("what the target's arithmetic costs", "did not load", "conversion failed", "not to be had here"):
            assert says in text.replace("&#x27;", "'")
    assert "did not load" not in markdown.render(matrix(OK))


def test_a_cell_says_cause_block_level_and_ops() -> None:
    assert words.line(OK) == "OK, 1.0e-3"
    assert words.line(DIFF) == "DIFF overflow in b.3, 0.20, r 1.0000"
    assert words.line(replace(DIFF, more=2, nonfinite=914)) == "DIFF overflow in b.3 +2, 914 not finite"
    assert words.line(PARTIAL) == "PARTIAL 6/10, 1.0e-3"
    assert words.line(failed(Code.C_FAIL)) == "C-FAIL"


def test_what_holds_for_all_targets_is_said_once() -> None:
    cells = [replace(failed(Code.L_FAIL), target=t, summary="no module x") for t in ("cpu", "gpu")]
    text = markdown.render(matrix(*cells))
    assert text.count("no module x") == 1
    assert "on cpu, gpu" in text


def test_what_was_refused_stands_there() -> None:
    refused = "SLICE x9: rank > 4"
    cells = [replace(PARTIAL, target=t, refused=refused, summary=f"right on {t}") for t in ("gpu", "gpu-fp32")]
    text = markdown.render(matrix(*cells))
    assert text.count("SLICE x9") == 1
    assert "on gpu, gpu-fp32: PARTIAL 6/10" in text
    assert "SLICE x9" in page.render(matrix(*cells), Path("none"))
    assert "The GPU refuses" not in markdown.render(matrix(PARTIAL))


def test_json_comes_back_as_it_was(whole: Matrix, tmp_path: Path) -> None:
    whole = replace(whole, changes=Baseline(matrix(OK)).changes(whole))
    (tmp_path / "matrix.json").write_text(whole.to_json())
    assert Matrix.load(tmp_path).to_json() == whole.to_json()
    assert Matrix.load(tmp_path).changes == whole.changes
    for text in ("", "[]", '{"schema": 99, "cells": []}', whole.to_json().replace('"code": "OK"', '"code": "FINE"')):
        (tmp_path / "matrix.json").write_text(text)
        with pytest.raises(MatrixFileError):
            Matrix.load(tmp_path)


def test_csv_has_a_line_per_cell(whole: Matrix) -> None:
    rows = list(csv.DictReader(io.StringIO(spreadsheet.render(whole))))
    assert [r["code"] for r in rows] == [str(c.code) for c in whole.cells]
    assert rows[0]["relative_l2"] == "0.001"
    assert rows[3]["relative_l2"] == ""
    changed = replace(whole, changes=Baseline(matrix(replace(OK, model="m1"))).changes(whole))
    assert list(csv.DictReader(io.StringIO(spreadsheet.render(changed))))[1]["change"] == "new DIFF"


def test_junit_counts_failures_errors_and_skips(whole: Matrix) -> None:
    (suite,) = ElementTree.fromstring(junit.render(whole))
    counts = {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "10", "failures": "2", "errors": "3", "skipped": "3"}
    # With a baseline only what got worse fails.
    known = replace(whole, changes=Baseline(whole).changes(whole))
    (suite,) = ElementTree.fromstring(junit.render(known))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    worse = replace(whole, changes=Baseline(matrix(replace(OK, model="m1"))).changes(whole))
    (suite,) = ElementTree.fromstring(junit.render(worse))
    assert suite.get("failures") == "1"
    assert "new DIFF" in junit.render(worse)


def test_the_page_is_one_file_that_fetches_nothing(whole: Matrix, tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "m1" / "t"
    (folder / "run").mkdir(parents=True)
    write_all(sample_record.overflow(), folder / "run")
    pictures.shrink(folder / "run" / "divergence.png", folder / "plot.png")
    assert 0 < (folder / "plot.png").stat().st_size < (folder / "run" / "divergence.png").stat().st_size
    cells = tuple(replace(c, folder=f"cells/{c.model}/t", size=1000) if c.model == "m1" else c for c in whole.cells)
    text = page.render(replace(whole, cells=cells), tmp_path)
    shown = Page(text)
    assert [link[:22] for link in shown.links if link.startswith("data:")] == ["data:image/png;base64,"]
    for link in shown.links:
        assert link.startswith(("#", "data:", "cells/m1/t/"))
        if link.startswith("#"):
            assert link[1:] in shown.ids
        elif link.endswith(("run.json", "report.md")):
            assert (tmp_path / link).is_file()
    assert not re.search(r"@import|url\(", text)
    assert len(text) < 400_000
    assert "prefers-color-scheme: dark" in text
    assert "position: sticky" in text


def test_a_plot_that_is_none_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no picture")
    for name in ("bad.png", "missing.png"):
        pictures.shrink(tmp_path / name, tmp_path / "plot.png")
        assert pictures.data_uri(tmp_path / "plot.png") == ""


def test_names_from_outside_do_no_harm() -> None:
    cell = replace(DIFF, model="m", block=NASTY, summary=NASTY, where=NASTY, device=NASTY, advice=NASTY, notes=(NASTY,))
    bad = replace(matrix(cell), title=NASTY)
    text = page.render(bad, Path("none"))
    assert Page(text).scripts == 1
    assert "alert(&quot;x&quot;)" in text
    assert "\x1b" not in text
    table = next(line for line in markdown.render(bad).splitlines() if line.startswith("| m |"))
    assert re.sub(r"\\\|", "", table).count("|") == 3
    ElementTree.fromstring(junit.render(bad))
    assert "\x1b" not in terminal.progress(cell, 1, 1)


def test_what_is_written_is_never_half_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.open()
    store.write("matrix.md", "first")
    with pytest.raises(UnicodeEncodeError):
        store.write("matrix.md", "\ud800")
    assert (tmp_path / "out" / "matrix.md").read_text() == "first"
    assert not list((tmp_path / "out").glob(".matrix*"))
