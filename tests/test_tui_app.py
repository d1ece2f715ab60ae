"""The terminal UI, driven by keys and the mouse."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sample_record as sample
import sample_run
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static, TabbedContent, TabPane

from bisect_litert import cli
from bisect_litert.errors import ExitCode
from bisect_litert.record import RunRecord
from bisect_litert.records.run_folder import MARKER
from bisect_litert.tui.app import BisectApp
from bisect_litert.tui.block_table import BlockTable, matches
from bisect_litert.tui.block_view import BlockView
from bisect_litert.tui.compare_view import CompareView
from bisect_litert.tui.divergence_plot import DivergencePlot
from bisect_litert.tui.masthead import Masthead
from bisect_litert.tui.picker import PickerScreen
from bisect_litert.tui.run_screen import RunScreen
from bisect_litert.tui.runs import find_runs
from bisect_litert.vocabulary import Mark

Script = Callable[[Pilot[None]], Awaitable[None]]


def drive(app: BisectApp, script: Script, size: tuple[int, int] = (120, 36)) -> None:
    """Runs the application without a terminal and a script of keys against it."""
    import asyncio

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(pilot)

    asyncio.run(run())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "bisect-run-m-20260301-120000"
    sample_run.write(folder)
    return folder


def app(folder: Path) -> BisectApp:
    return BisectApp(RunRecord.load(folder), folder)


def screen(pilot: Pilot[None]) -> RunScreen:
    assert isinstance(pilot.app.screen, RunScreen)
    return pilot.app.screen


def shown(pilot: Pilot[None], where: str) -> str:
    """What a widget of the screen shows, as text."""
    widget = pilot.app.screen.query_one(where)
    return "\n".join(strip.text.rstrip() for strip in widget.render_lines(widget.outer_size.region))


def words(pilot: Pilot[None], where: str) -> str:
    """What a framed widget shows, without the frame and with its lines joined."""
    return " ".join(line.strip("│╭╮╰╯─ ") for line in shown(pilot, where).splitlines())


async def settled(pilot: Pilot[None]) -> None:
    """Waits for what is read in threads, and for what that draws."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    await pilot.pause()


# -- overview ----------------------------------------------------------------------------------------------------------


def test_it_opens_on_the_verdict_with_the_culprit_selected(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        top = shown(pilot, "Masthead")
        assert "✗ OVERFLOW in enc.b3  high confidence" in top
        assert "llvmpipe" in top
        assert "74 operations ran on the GPU" in top
        assert screen(pilot).selected == 3
        assert pilot.app.screen.query_one(BlockTable).cursor_row == 3
        assert shown(pilot, "#readout").startswith("✗ enc.b3  cumulative 0.50")
        assert "∞ 256 not finite" in shown(pilot, "#readout")
        assert "72% of its output is exactly zero" in shown(pilot, "#summary")

    drive(app(run), script)


def test_the_first_screen_waits_for_nothing_else(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[BlockTable] = []
    judged: list[object] = []
    fill = BlockTable.fill
    monkeypatch.setattr(BlockTable, "fill", lambda table: (filled.append(table), fill(table))[1])
    monkeypatch.setattr(RunScreen, "judge", lambda _, settings: judged.append(settings))

    async def script(pilot: Pilot[None]) -> None:
        assert [len(pane.children) for pane in pilot.app.screen.query(TabPane)] == [1, 0, 0, 0, 0, 0]
        await pilot.press("tab", "shift+tab", "t")
        await pilot.pause()
        assert len(filled) == 2  # once, and in the other theme's colours; not for the focus
        await pilot.press("6")
        await pilot.pause()
        assert [len(pane.children) for pane in pilot.app.screen.query(TabPane)] == [1, 0, 0, 0, 0, 1]
        assert judged == []  # the lines' own first words are no other tolerances

    drive(app(run), script)


def test_the_plot_follows_the_table_and_the_table_the_plot(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        table, plot = pilot.app.screen.query_one(BlockTable), pilot.app.screen.query_one(DivergencePlot)
        await pilot.press("up", "up")
        assert plot._cursor == 1
        assert shown(pilot, "#readout").startswith("✓ enc.b1")
        plot.focus()
        await pilot.press("right")
        assert table.cursor_row == 2
        await pilot.press("end")
        assert table.cursor_row == 5
        assert screen(pilot).selected == 5

    drive(app(run), script)


def test_a_click_in_the_plot_selects_the_block_below_it(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        plot = pilot.app.screen.query_one(DivergencePlot)
        await pilot.click(DivergencePlot, offset=(int(plot._column(1)), 6))
        assert screen(pilot).selected == 1
        assert pilot.app.screen.query_one(BlockTable).cursor_row == 1

    drive(app(run), script)


def test_the_wheel_and_the_keys_zoom_about_what_they_point_at(run: Path) -> None:
    record = sample_run.deep()

    async def script(pilot: Pilot[None]) -> None:
        plot = pilot.app.screen.query_one(DivergencePlot)
        assert (plot._window.low, plot._window.high) == (-0.5, 299.5)
        for _ in range(6):
            await pilot._post_mouse_events(
                [__import__("textual.events", fromlist=["x"]).MouseScrollUp], DivergencePlot, (20, 5), button=0
            )
        low, high = plot._window.low, plot._window.high
        assert 0 <= low < high < 299.5
        assert high - low == pytest.approx(300 * 0.7**6)
        await pilot.press("0")
        assert (plot._window.low, plot._window.high) == (-0.5, 299.5)
        await pilot.press("+", "+")
        low, high = plot._window.low, plot._window.high
        assert low < 200 < high
        assert high - low == pytest.approx(300 * 0.7**2)
        await pilot.press("-", "-", "-")
        assert (plot._window.low, plot._window.high) == (-0.5, 299.5)

    drive(BisectApp(record), script)


def test_the_plot_marks_culprits_and_what_is_not_finite(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        plot = pilot.app.screen.query_one(DivergencePlot)
        text = shown(pilot, "DivergencePlot").splitlines()
        column = int(plot._column(3))
        assert text[1][column] == "✗"
        assert text[2][column] == "∞"
        assert "enc.b3" in text[-1]
        assert "1e-4" in "\n".join(text)

    drive(app(run), script)


def test_sorting_by_the_column_of_the_cursor(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        await pilot.press("right", "right", "right")
        assert table.column_title == "local"
        await pilot.press("x")
        assert table.shown[0] == 3
        assert table.cursor_row == 0  # the cursor stays on its block
        await pilot.press("x")
        assert table.shown[-1] == 3
        await pilot.press("x")
        assert table.shown == list(range(6))

    drive(app(run), script)


def test_unknown_values_are_sorted_last_either_way() -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        table.sort_by("rel L2")
        assert table.shown == [2, 1, 0, 3]
        table.sort_by("rel L2")
        assert table.shown == [0, 1, 2, 3]

    drive(BisectApp(sample.wrong_kernel()), script)


def test_the_filter_takes_globs_and_parts_of_names() -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        await pilot.press("slash", *"*.*.1?.mlp")
        assert len(table.shown) == 10
        await pilot.press("enter")
        assert pilot.app.focused is table
        assert "10 of 300 blocks · matching *.*.1?.mlp" in shown(pilot, "#table-note")
        await pilot.press("escape")
        assert len(table.shown) == 300
        await pilot.press("slash", *"299")
        assert table.shown == [299]

    drive(BisectApp(sample_run.deep()), script)


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("enc.*", "enc.b3", True),
        ("enc.*", "enc.b3.norm", False),
        ("enc.**", "enc.b3.norm", True),
        ("**.norm", "enc.b3.norm", True),
        ("b3", "enc.b3.norm", True),
        ("B3", "enc.b3.norm", True),
        ("enc.b?", "enc.b3", True),
        ("enc.b[3]", "enc.b3", False),
        ("", "x", True),
    ],
)
def test_globs_stay_within_a_level(pattern: str, name: str, hit: bool) -> None:
    assert matches(sample.block(name, 0), pattern, None) is hit


def test_the_mark_key_goes_through_the_marks_there_are() -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        seen = []
        for _ in range(6):
            await pilot.press("m")
            seen.append((table.mark, len(table.shown)))
        assert seen == [
            (Mark.CULPRIT, 1),
            (Mark.OK, 198),
            (Mark.AFTER, 99),
            (Mark.NOTE, 1),
            (Mark.UNTAPPED, 1),
            (None, 300),
        ]

    drive(BisectApp(sample_run.deep()), script)


def test_300_blocks_scroll_without_lag() -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        await pilot.press("ctrl+home")
        start = time.process_time()
        for _ in range(30):
            await pilot.press("down")
        took = (time.process_time() - start) / 30
        assert table.cursor_row == 30
        # Processor time, because others use the machine too. The pilot's own share is in it.
        assert took < 0.1

    drive(BisectApp(sample_run.deep()), script)


def test_the_keys_of_pagers_move_as_arrows_do() -> None:
    async def script(pilot: Pilot[None]) -> None:
        table = pilot.app.screen.query_one(BlockTable)
        await pilot.press("g")
        assert table.cursor_row == 0
        await pilot.press("j", "j", "k", "l")
        assert (table.cursor_row, table.cursor_column) == (1, 1)
        await pilot.press("G")
        assert table.cursor_row == 299
        await pilot.press("slash", *"jg")  # typed, not obeyed
        assert pilot.app.screen.query_one("#filter", Input).value == "jg"
        await pilot.press("escape", "question_mark", "G")
        dialog = pilot.app.screen.query_one(VerticalScroll)
        await pilot.pause(0.5)
        assert dialog.scroll_y == dialog.max_scroll_y > 0

    drive(BisectApp(sample_run.deep()), script, (80, 24))


def test_n_goes_from_culprit_to_culprit_and_round_the_end() -> None:
    record = sample_run.deep()
    culprits = [b.order for b in record.blocks if b.mark is Mark.CULPRIT]

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("g")
        for wanted in (*culprits, culprits[0]):
            await pilot.press("n")
            assert screen(pilot).selected == wanted
        await pilot.press("N")
        assert screen(pilot).selected == culprits[-1]

    drive(BisectApp(record), script)


def test_a_filter_is_a_key_away_in_every_tab(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        await pilot.press("slash", *"blocks")
        assert screen(pilot).tab == "overview"
        assert pilot.app.screen.query_one("#filter", Input).value == "blocks"

    drive(app(run), script)


# -- block -------------------------------------------------------------------------------------------------------------


def test_enter_opens_the_block_with_its_tensors(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await settled(pilot)
        assert screen(pilot).tab == "block"
        patterns = words(pilot, "#panel-patterns")
        assert "256 (12.5%) NaN or infinite: all of rows 3 and 5 (axis 1)" in patterns
        assert "zero where torch is not" in patterns
        assert "every channel from 48 (axis 2)" in patterns
        assert "65504" in shown(pilot, "#panel-histogram")
        assert "∞" in shown(pilot, "#panel-heat")
        assert "[0, 3, 0]" in shown(pilot, "#panel-worst")

    drive(app(run), script, (120, 90))


def test_a_tensor_that_was_not_kept_says_how_to_keep_it(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("up", "enter")
        await settled(pilot)
        text = words(pilot, "#panel-statistics")
        assert "were not kept" in text
        await pilot.press("y")
        assert pilot.app.clipboard == 'bisect-litert examples/layernorm_overflow.py --blocks "enc.b2"'
        assert 'bisect-litert examples/layernorm_overflow.py --blocks "enc.b2"' in text
        assert "gpu-fp32" in shown(pilot, "#panel-numbers")

    drive(app(run), script)


@pytest.mark.parametrize("damage", ["missing", "short", "text"])
def test_a_damaged_tensor_costs_its_panel(run: Path, damage: str) -> None:
    path = run / "tensors/000-enc.b3.target.npy"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:150] if damage == "short" else b"x")

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("enter")
        await settled(pilot)
        text = shown(pilot, "#panel-statistics")
        assert "target.npy is " + ("missing" if damage == "missing" else "damaged") in text
        await pilot.press("1", "3", "4")
        assert "SQUARED_DIFFERENCE" in shown(pilot, "#evidence-culprits") or screen(pilot).tab == "evidence"

    drive(app(run), script)


def test_next_and_previous_block(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "n")
        await settled(pilot)
        assert "enc.b4" in shown(pilot, "#block-headline")
        assert screen(pilot).selected == 4
        await pilot.press("p", "p")
        await settled(pilot)
        assert "enc.b2" in shown(pilot, "#block-headline")
        await pilot.press("escape")
        assert pilot.app.screen.query_one(BlockTable).cursor_row == 2

    drive(app(run), script)


def test_leaving_a_block_while_it_is_read_shows_the_next_one(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("enter", "n")
        view = pilot.app.screen.query_one(BlockView)
        view.post_message(BlockView.Read((3, 0), None, "late"))
        await settled(pilot)
        assert "late" not in shown(pilot, "#panel-statistics")

    drive(app(run), script)


# -- ops, evidence -----------------------------------------------------------------------------------------------------


def test_the_ops_stand_in_order_with_the_guilty_one_selected(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        table = pilot.app.screen.query_one("#ops-table", DataTable)
        assert table.row_count == 6
        assert table.cursor_row == 3
        text = shown(pilot, "#ops-table")
        assert "SQUARED_DIFFERENCE" in text
        assert "5.1e7!" in text
        assert "914 n-fin" in text
        source = shown(pilot, "#ops-source")
        assert "> 40         return x + self.mlp(self.norm2(x * self.gain))" in source
        await pilot.press("k")
        assert "op 191 RESHAPE" in str(pilot.app.screen.query_one("#ops-source", Static).border_title)
        await pilot.press("c")
        assert table.cursor_row == 3

    drive(app(run), script)


def test_a_culprit_without_ops_shows_what_is_known() -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        assert "1246 elements are infinite" in shown(pilot, "#ops-source")

    drive(BisectApp(sample.overflow()), script)


def test_a_healthy_run_has_no_ops_to_show() -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("3")
        await pilot.pause()
        assert "There is no culprit" in shown(pilot, "#ops-headline")
        await pilot.press("4")
        await pilot.pause()
        assert not pilot.app.screen.query_one("#evidence-culprits").display

    drive(BisectApp(sample.healthy()), script)


def test_the_evidence_says_why_not_the_neighbours(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("4")
        await pilot.pause()
        text = shown(pilot, "#evidence-culprits")
        assert "enc.b2, before it: right at its own inputs" in text
        assert "enc.b4, after it: right at its own inputs" in text
        assert "proof: With this block kept off the GPU" in text
        assert "known upstream: google-ai-edge/LiteRT#8593" in text
        assert "high confidence: 7 of 7 readings agree." in text

    drive(app(run), script, (120, 60))


# -- tolerances --------------------------------------------------------------------------------------------------------


def test_other_tolerances_change_the_verdict_everywhere(run: Path) -> None:
    record = sample.overflow()

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        for name, value in (("ratio", "4000"), ("output", "1")):
            pilot.app.screen.query_one(f"#tolerance-{name}", Input).value = value
        await pilot.pause()
        assert "no divergence" in shown(pilot, "#tolerance-result")
        assert "enc.b3 is no culprit any more." in shown(pilot, "#tolerance-result")
        assert "recomputed: ratio 4000, output 1" in shown(pilot, "Masthead")
        assert {b.mark for b in screen(pilot).record.blocks} == {Mark.OK}
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert screen(pilot).record == record
        assert "recomputed" not in shown(pilot, "Masthead")

    drive(BisectApp(record), script)


def test_the_arrows_double_and_halve_and_nonsense_is_said() -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("6")
        await pilot.pause()
        line = pilot.app.screen.query_one("#tolerance-ratio", Input)
        await pilot.press("up", "up")
        assert line.value == "40"
        await pilot.press("down")
        assert line.value == "20"
        line.value = "many"
        await pilot.pause()
        assert "'many' is no value for ratio." in shown(pilot, "#tolerance-result")
        await pilot.press("escape")
        assert screen(pilot).tab == "overview"

    drive(BisectApp(sample.overflow()), script)


# -- compare and picker ------------------------------------------------------------------------------------------------


def test_two_runs_are_compared_block_by_block(run: Path, tmp_path: Path) -> None:
    before = tmp_path / "bisect-run-before"
    before.mkdir()
    sample.wrong_kernel().save(before)

    async def script(pilot: Pilot[None]) -> None:
        assert screen(pilot).tab == "compare"
        text = shown(pilot, "#compare-headline")
        assert "The verdict went from wrong-kernel to overflow" in text
        assert "no partner: embed" in text
        assert pilot.app.screen.query_one("#compare-table", DataTable).row_count == 10
        assert "model: attention.py → examples/layernorm_overflow.py" in shown(pilot, "#compare-facts")

    record = RunRecord.load(run)
    drive(BisectApp(record, run, other=RunRecord.load(before), other_folder=before), script)


def test_an_earlier_run_can_be_chosen_inside(run: Path, tmp_path: Path) -> None:
    before = tmp_path / "bisect-run-before"
    before.mkdir()
    sample.healthy().save(before)

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("5")
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        assert "The verdict went from none to overflow: 1 culprit new." in shown(pilot, "#compare-headline")
        assert pilot.app.screen.query_one(CompareView).markdown.startswith("# The verdict went from")

    drive(app(run), script)


def test_the_picker_lists_runs_and_survives_damaged_and_newer_ones(run: Path) -> None:
    for name, content in (("broken", "{"), ("newer", '{"schema": 9}'), ("list", "[]")):
        (run.parent / f"bisect-run-{name}").mkdir()
        (run.parent / f"bisect-run-{name}" / "run.json").write_text(content)

    async def script(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app.screen, PickerScreen)
        text = shown(pilot, "#runs")
        assert "✗ overflow in enc.b3" in text
        assert text.count("run.json is damaged") == 2
        assert "schema 9, this reads 1" in text
        for line in range(4):
            pilot.app.screen.query_one(DataTable).move_cursor(row=line)
            await pilot.press("enter")
            await pilot.pause()
            if isinstance(pilot.app.screen, RunScreen):
                break
        assert screen(pilot).record.culprits[0].block == "enc.b3"
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, PickerScreen)

    drive(BisectApp(runs=run.parent), script)


# -- what leaves the application ---------------------------------------------------------------------------------------


def test_y_copies_the_cell_and_capital_y_the_summary(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("y")
        assert pilot.app.clipboard == "enc.b3"
        await pilot.press("right", "right", "right", "right", "y")
        assert pilot.app.clipboard == shown_ratio
        await pilot.press("Y")
        assert (
            pilot.app.clipboard.startswith("# examples/layernorm\\_overflow.py")
            or "overflow in enc.b3" in pilot.app.clipboard
        )
        await pilot.press("4")
        await pilot.pause()
        await pilot.press("y")
        assert pilot.app.clipboard.startswith("Scale the input of the norm")

    block = RunRecord.load(run).blocks[3]
    shown_ratio = f"{block.ratio:.0f}"
    drive(app(run), script)


@pytest.mark.parametrize(("kind", "keys"), [("svg", ["enter"]), ("png", ["down", "enter"])])
def test_s_saves_the_view_and_overwrites_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, keys: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"bisect-view-layernorm_overflow-overview.{kind}"
    Path(name).write_text("mine")

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("s", *keys)
        await pilot.pause()

    drive(app(run), script)
    saved = Path(name.replace(f".{kind}", f"-2.{kind}"))
    assert Path(name).read_text() == "mine"
    if kind == "svg":
        text = saved.read_text()
        assert "OVERFLOW" in text
        assert "Save&#160;this&#160;view" not in text
    else:
        from PIL import Image

        image = Image.open(saved)
        assert image.size == (120 * 14 + 32, 36 * 28 + 32)
        assert len(image.getcolors(1 << 20) or []) > 20


def test_a_view_that_cannot_be_saved_is_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.tui import saving

    def full(*_: object, **__: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "save", full)

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("s", "enter")
        await pilot.pause()
        assert [n.message for n in pilot.app._notifications] == [
            "The view cannot be saved here: No space left on device."
        ]

    drive(app(run), script)


def test_o_without_a_desktop_says_where_the_folder_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("o")
        assert pilot.app.clipboard == str(run.resolve())

    drive(app(run), script)


def test_help_opens_and_closes_and_light_and_dark_change(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "wrong at its own inputs" in shown(pilot, ".dialog Static") or pilot.app.screen.query(".dialog")
        await pilot.press("escape")
        for tab in "123456":
            await pilot.press(tab)
            await pilot.pause()
            if tab != "6":
                await pilot.press("t")
                await pilot.pause()
        assert screen(pilot).query_one(TabbedContent).active == "tolerances"

    drive(app(run), script)


def test_the_palette_finds_blocks(run: Path) -> None:
    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"block enc.b1")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert screen(pilot).tab == "block"
        assert screen(pilot).selected == 1

    drive(app(run), script)


# -- strange records ---------------------------------------------------------------------------------------------------

EVIL = replace(sample.overflow().blocks[0], name="\x1b[31m[bold]a.\u4e2d\u6587[/nope]")


@pytest.mark.parametrize(
    "record",
    [
        sample.healthy(),
        sample.emulated(),
        sample.wrong_kernel(),
        sample.nan_metrics(),
        sample.cannot_test(),
        replace(sample.cannot_test(), blocks=()),
        replace(sample.overflow(), blocks=(EVIL, *sample.overflow().blocks[1:])),
    ],
    ids=["healthy", "emulated", "wrong-kernel", "nan", "cannot-test", "no blocks", "evil names"],
)
@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 12)])
def test_every_record_survives_every_tab(record: RunRecord, size: tuple[int, int]) -> None:
    async def script(pilot: Pilot[None]) -> None:
        for tab in "23456":
            pilot.app.screen.action_tab(int(tab) - 1)  # type: ignore[attr-defined]
            await settled(pilot)
        pilot.app.screen.action_tab(0)  # type: ignore[attr-defined]
        await pilot.press("down", "up", "x", "m", "+", "enter")
        await settled(pilot)
        assert "\x1b" not in shown(pilot, "Masthead")

    drive(BisectApp(record), script, size)


def test_an_emulated_run_says_so_on_top() -> None:
    async def script(pilot: Pilot[None]) -> None:
        assert "emulated fp16, no GPU" in shown(pilot, "Masthead")
        assert isinstance(pilot.app.screen.query_one(Masthead), Masthead)

    drive(BisectApp(sample.emulated()), script, (80, 24))


# -- the command line --------------------------------------------------------------------------------------------------


def test_view_needs_neither_torch_nor_litert(run: Path) -> None:
    code = """
import asyncio, sys
from pathlib import Path
from bisect_litert.record import RunRecord
from bisect_litert.tui.app import BisectApp
folder = Path(sys.argv[1])
async def main():
    async with BisectApp(RunRecord.load(folder), folder).run_test() as pilot:
        for key in "23456":
            await pilot.press(key)
        await pilot.pause()
asyncio.run(main())
print(sorted(name for name in ("torch", "ai_edge_litert", "litert_torch", "transformers") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize("content", [None, "{", json.dumps({"schema": 9})])
def test_a_missing_damaged_or_newer_run_is_one_sentence(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
        (folder / "run.json").write_text(content)
    for words in (["view", str(folder)], ["diff", str(folder), str(folder)]):
        assert cli.main(words) == ExitCode.USAGE
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 2


def test_without_runs_there_is_nothing_to_pick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["view"]) == ExitCode.USAGE
    assert "There are no run folders in the current directory." in capsys.readouterr().err


def test_without_a_terminal_it_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", str(run)]) == ExitCode.USAGE
    assert "needs a terminal" in capsys.readouterr().err


def test_diff_prints_and_exits_by_whether_it_got_worse(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = tmp_path / "healthy"
    healthy.mkdir()
    sample.healthy().save(healthy)
    assert cli.main(["diff", str(healthy), str(run)]) == ExitCode.DIVERGED
    assert "new: enc.b3 (overflow)" in capsys.readouterr().out
    assert cli.main(["diff", str(run), str(healthy), "--format", "json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["fixed"] == ["enc.b3"]
    assert cli.main(["diff", str(run), str(healthy), "--format", "md"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("# The verdict went from overflow to none")


def test_report_judges_with_other_tolerances(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = sample.overflow()
    record.save(run)
    assert cli.main(["report", str(run), "--tolerance", "ratio=4000", "--tolerance", "output=1"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "NO DIVERGENCE" in out
    assert "Judged again from the stored numbers" in out
    assert RunRecord.load(run) == record
    assert cli.main(["report", str(run), "--tolerance", "ratio"]) == ExitCode.USAGE


def test_the_picker_finds_runs_whatever_out_called_them(tmp_path: Path) -> None:
    for name, marked in (("bisect-run-m-1", False), ("mine", True), ("not-ours", False)):
        (tmp_path / name).mkdir()
        sample.overflow().save(tmp_path / name)
        if marked:
            (tmp_path / name / MARKER).write_text("")
    (tmp_path / "a-file").write_text("")
    assert {line.folder.name for line in find_runs(tmp_path)} == {"bisect-run-m-1", "mine"}
