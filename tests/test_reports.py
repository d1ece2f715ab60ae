from __future__ import annotations

import dataclasses
import io
import json
import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
import sample_record as sample
from rich.cells import cell_len
from rich.console import Console

import bisect_litert
from bisect_litert import record as nouns
from bisect_litert.errors import ExitCode
from bisect_litert.record import RunRecord, Verdict
from bisect_litert.reports import UnwrittenError, block_table, console, formats, markdown, plot, write_all
from bisect_litert.reports.names import shorten, shorten_all
from bisect_litert.reports.outcome import exit_code, headline
from bisect_litert.reports.progress import ProgressDrawer
from bisect_litert.request import Progress
from bisect_litert.vocabulary import Cause, Mark

ROOT = Path(__file__).parent.parent
BUILDERS = [
    sample.overflow,
    sample.emulated,
    sample.healthy,
    sample.many,
    sample.wrong_kernel,
    sample.nan_metrics,
    sample.cannot_test,
]


def text_of(record: RunRecord, width: int = 80, *, verbose: bool = False, encoding: str = "utf-8", **options) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console.render(record, Console(file=file, width=width, **options), folder=Path("bisect-run-m-1"), verbose=verbose)
    file.flush()
    return raw.getvalue().decode(encoding)


def rows_of(text: str) -> list[str]:
    """Returns the lines of the block table."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("block "))
    return lines[start + 1 : next(i for i in range(start, len(lines)) if lines[i].startswith("Verdict")) - 1]


# -- outcome ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "diverged", "tested", "code"),
    [
        (Cause.NONE, False, True, ExitCode.OK),
        (Cause.OVERFLOW, True, True, ExitCode.DIVERGED),
        (Cause.PRECISION_LOSS, False, True, ExitCode.OK),
        (Cause.REJECTED, True, True, ExitCode.DIVERGED),
        (Cause.REJECTED, False, True, ExitCode.OK),
        (Cause.CANNOT_TEST, False, True, ExitCode.CANNOT_TEST),
        (Cause.CPU_FALLBACK, False, True, ExitCode.CANNOT_TEST),
        (Cause.REFERENCE, False, True, ExitCode.CANNOT_TEST),
        (Cause.CRASH, True, True, ExitCode.DIVERGED),
        (Cause.CRASH, False, False, ExitCode.CANNOT_TEST),
        (Cause.HANG, False, False, ExitCode.CANNOT_TEST),
        (Cause.HANG, False, True, ExitCode.OK),
    ],
)
def test_exit_code_follows_from_the_verdict(cause: Cause, diverged: bool, tested: bool, code: ExitCode) -> None:
    base = sample.healthy() if tested else sample.cannot_test()
    assert exit_code(replace(base, verdict=Verdict(cause, diverged, "", ""))) is code


def test_headline_counts_the_culprits() -> None:
    assert headline(sample.overflow()) == "overflow in enc.b3"
    assert headline(sample.many(100, (10, 20, 30))).endswith("layers.10.self_attention_block and 2 more")
    assert headline(sample.healthy()) == "no divergence"


# -- terminal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_of_the_table_is_wider_than_the_terminal(builder, width: int) -> None:
    record = builder()
    lines = list(block_table.block_lines(record, width))
    assert max(cell_len(line.plain) for line in lines if not line.plain.startswith("…")) <= width
    shown = sum(len(stretch) == 1 for stretch in block_table.fold(record.blocks))
    assert len(lines) == 1 + len(block_table.fold(record.blocks)) >= shown


def test_the_table_at_80_columns_has_every_column_of_the_issue() -> None:
    for record in (sample.overflow(), sample.wrong_kernel(), sample.many()):
        header = next(line for line in text_of(record).splitlines() if line.startswith("block "))
        assert header.split()[1:] == [
            "corr", "rel", "L2", "local", "ratio", "peak", "n-fin",
            *(["on"] if "attention.py" in record.model else []), "zeros", "mark",
        ]  # fmt: skip


def test_the_culprits_numbers_stand_in_its_row() -> None:
    row = next(line for line in rows_of(text_of(sample.overflow())) if line.startswith("enc.b3"))
    assert row.split() == ["enc.b3", "0.5322", "0.85", "0.85", "2919", "4.4", "0", "71.7%", "✗", "culprit"]


def test_a_nan_is_shown_as_nan_and_an_untapped_block_as_a_dash() -> None:
    rows = rows_of(text_of(sample.nan_metrics()))
    assert rows[1].split()[1:4] == ["nan", "nan", "nan"]
    assert "32.8k" in rows[1]
    dead = next(line for line in rows_of(text_of(sample.wrong_kernel())) if line.startswith("dead"))
    assert dead.split() == ["dead", *"-----", "-", "GPU", "-", "○", "untapped"]


def test_long_models_are_folded_around_their_culprits() -> None:
    record = sample.many(100, (57,))
    stretches = block_table.fold(record.blocks)
    alone = [stretch[0].order for stretch in stretches if len(stretch) == 1]
    assert alone == [0, 55, 56, 57, 58, 59, 99]
    assert sum(map(len, stretches)) == 100
    text = text_of(record)
    assert "… 54 blocks in line, ratio ≤ 2.0" in text
    assert "… 39 blocks after a culprit, in line by themselves, ratio ≤ 2.0" in text
    assert len(rows_of(text_of(record, verbose=True))) >= 100


def test_a_short_stretch_is_not_folded_and_mixed_ones_are_counted() -> None:
    blocks = [replace(b, mark=Mark.UNTAPPED if b.order % 2 else Mark.OK) for b in sample.many(40, ()).blocks]
    record = replace(sample.many(40, ()), blocks=tuple(blocks))
    assert "… 38 blocks: 19 in line, 19 untapped" in text_of(record)
    close = sample.many(30, (10, 18))
    assert [len(s) for s in block_table.fold(close.blocks)][:12] == [1, 7, *[1] * 10]


@pytest.mark.parametrize("width", [80, 120])
def test_emulation_is_said_at_the_top_in_the_table_title_and_in_the_verdict(width: int) -> None:
    lines = [line for line in text_of(sample.emulated(), width).splitlines() if "emulated fp16, no GPU" in line]
    assert [line.split()[0] for line in lines] == ["bisect-litert", "Blocks", "Verdict"]
    assert "emulated fp16, no GPU" not in text_of(sample.overflow(), width)


@pytest.mark.parametrize("builder", BUILDERS)
def test_without_colour_there_is_no_escape_and_ascii_is_enough(builder) -> None:
    text = text_of(builder(), encoding="ascii")
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in rows_of(text))
    assert all(line == line.rstrip() for line in text.splitlines())


def test_with_colour_the_words_stay() -> None:
    coloured = text_of(sample.overflow(), force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text_of(sample.overflow())


def test_control_codes_in_names_do_not_reach_the_terminal() -> None:
    record = sample.overflow()
    evil = replace(record.blocks[0], name="a\x1b[2Jb\x9b")
    text = text_of(replace(record, blocks=(evil, *record.blocks[1:]), model="m\x1b]0;x\x07.py"))
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "a�[2Jb�" in text


def test_square_brackets_are_no_markup() -> None:
    verdict = Verdict(Cause.NONE, False, "Output [1] and [/bold] agree.", "")
    assert "Output [1] and [/bold] agree." in text_of(replace(sample.healthy(), verdict=verdict))


def test_commands_can_be_copied_whole() -> None:
    text = text_of(sample.many())
    assert '\nCommands   bisect-litert examples/layernorm_overflow.py --blocks "model.encoder.layers.57.' in text
    assert '57.self_attention_block.**"\n           bisect-litert view bisect-run-m-1\n' in text


def test_a_leaf_is_not_offered_to_be_looked_into() -> None:
    record = sample.overflow()
    leaf = tuple(replace(b, class_name="LayerNorm") for b in record.blocks)
    assert "--blocks" in text_of(record)
    assert "--blocks" not in text_of(replace(record, blocks=leaf))


def test_trouble_with_a_run_is_told() -> None:
    runs = (nouns.RunInfo("gpu", "crashed", 1.0, "SIGSEGV", "logs/gpu.log"),)
    assert "run gpu crashed (logs/gpu.log): SIGSEGV" in text_of(replace(sample.cannot_test(), runs=runs))


# -- names and numbers ------------------------------------------------------------------------------------------------


def test_names_are_cut_in_the_middle_and_stay_distinct() -> None:
    assert shorten("encoder.layers.3.attention", 12) == "enco…tention"
    assert shorten("short", 12) == "short"
    for width in (12, 16, 24):
        for names in (
            [f"model.encoder.layers.{i}.self_attention_block" for i in range(40)],
            [f"{side}.layers.{i}.attention.output.dense" for side in ("encoder", "decoder") for i in range(12)],
        ):
            short = shorten_all(names, width)
            assert max(map(cell_len, short)) <= width
            assert len(set(short)) == len(names)


def test_of_a_shared_path_as_much_stays_as_there_is_room_for() -> None:
    names = [f"encoder.layers.2.ff.{leaf}" for leaf in ("up", "gate.proj", "gate", "down")]
    assert shorten_all(names, 18) == ["…2.ff.up", "…2.ff.gate.proj", "…2.ff.gate", "…2.ff.down"]
    assert shorten_all(names, 10) == ["…up", "…gate.proj", "…gate", "…down"]


def test_wide_characters_count_double() -> None:
    assert cell_len(shorten("层" * 20, 11)) <= 11


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (3.14e-4, "3.1e-4"), (0.01, "0.010"), (0.846, "0.85"), (4.21, "4.2"), (412.0, "412"),
        (9999.0, "9999"), (1.07e6, "1.1e6"), (65504.0, "6.6e4"), (nan, "nan"), (inf, "inf"), (-inf, "-inf"),
        (-3.87, "-3.9"), (0.0996, "0.100"), (9999.7, "10000"), (1e-45, "1.0e-45"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert formats.number(value) == text


def test_shares_never_round_to_none_or_all() -> None:
    assert [formats.percent(n, 100_000) for n in (0, 1, 50_000, 99_999, 100_000)] == [
        "0%",
        "0.1%",
        "50.0%",
        "99.9%",
        "100%",
    ]
    assert formats.percent(0, 0) == "nan"


def test_the_reproduce_command_holds_what_is_not_the_default() -> None:
    settings = nouns.Settings(blocks=("a b.*", "x$y"), seed=3, strict=True, tap="reexport", inputs="x.npz", no_gpu=True)
    command = formats.run_command(replace(sample.healthy(), settings=settings, model="my model.py"))
    assert command == (
        "bisect-litert 'my model.py' --blocks \"a b.*\" --blocks 'x$y' --inputs x.npz "
        "--seed 3 --tap reexport --strict --no-gpu"
    )


# -- Markdown ---------------------------------------------------------------------------------------------------------


def cells(row: str) -> list[str]:
    return re.split(r"(?<!\\)\|", row)[1:-1]


@pytest.mark.parametrize("builder", BUILDERS)
def test_every_table_row_has_as_many_cells_as_its_header(builder) -> None:
    lines = markdown.render(builder()).splitlines()
    tables = 0
    for index, line in enumerate(lines):
        if line.startswith("| --"):
            tables += 1
            width = len(cells(line))
            assert len(cells(lines[index - 1])) == width
            for row in lines[index + 1 :]:
                if not row.startswith("|"):
                    break
                assert len(cells(row)) == width, row
    assert tables >= 3


def test_pipes_and_backticks_in_names_survive() -> None:
    text = markdown.render(sample.wrong_kernel())
    assert "| ``heads.a\\|b`c`` | EncoderBlock |" in text
    assert "1. ``heads.a|b`c`` (EncoderBlock): **wrong kernel**" in text
    assert "# attention.py: wrong kernel in heads.a\\|b\\`c\n" in text


def test_prose_is_escaped_only_where_it_must_be() -> None:
    assert markdown._text("BROADCAST_TO of __main__.M <b> *x*") == r"BROADCAST_TO of \_\_main\_\_.M \<b\> \*x\*"


def test_long_tables_are_folded_with_the_culprit_outside() -> None:
    text = markdown.render(sample.many())
    head, _, rest = text.partition("<details>")
    assert head.count("self_attention_block` |") == 1
    assert rest.count("self_attention_block` |") == 100
    assert "<details>" not in markdown.render(sample.overflow())


def test_what_was_ruled_out_names_the_run_that_did() -> None:
    assert "**Conversion**, by the `cpu` run" in markdown.render(sample.overflow())
    assert "within 3.0e-7 at `enc.b3`" in markdown.render(sample.overflow())
    # No run with fp32 arithmetic, no claim about it.
    assert "gpu-fp32` run" not in markdown.render(sample.emulated())
    # Wrong in fp32 as well: the kernel is not ruled out.
    assert "**A wrong kernel**" not in markdown.render(sample.wrong_kernel())


def test_the_report_says_emulated() -> None:
    assert markdown.render(sample.emulated()).count("emulated fp16, no GPU") == 2


# -- plot -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("builder", [sample.overflow, sample.nan_metrics, sample.cannot_test, lambda: sample.many(300)])
def test_the_plot_is_a_png_wide_enough(builder, tmp_path: Path) -> None:
    plot.save(builder(), tmp_path / "p.png")
    data = (tmp_path / "p.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") >= 1600


def axes_of(record: RunRecord, path: Path, monkeypatch: pytest.MonkeyPatch):
    from matplotlib.figure import Figure

    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: kept.append(self))
    plot.save(record, path)
    return kept[0].axes[0]


def test_nonfinite_blocks_stand_on_the_top_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = axes_of(sample.nan_metrics(), tmp_path / "p.png", monkeypatch)
    (line,) = [line for line in axes.lines if line.get_label() == "NaN or infinite"]
    assert list(line.get_xdata()) == [1, 2, 3]
    assert set(line.get_ydata()) == {1.0}
    assert line.get_transform() == axes.get_xaxis_transform()


def test_lines_differ_without_colour_and_ticks_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = axes_of(sample.many(300), tmp_path / "p.png", monkeypatch)
    styles = {line.get_label(): line.get_linestyle() for line in axes.lines if line.get_linestyle() != "None"}
    assert set(styles) == {"cumulative", "local", "expected"}
    assert len(set(styles.values())) == 3
    assert len(axes.get_xticks()) <= plot.MOST_TICKS


# -- all together -----------------------------------------------------------------------------------------------------


def test_write_all_leaves_three_files_and_a_record_that_loads(tmp_path: Path) -> None:
    record = write_all(sample.overflow(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["divergence.png", "report.md", "run.json"]
    assert RunRecord.load(tmp_path) == record
    assert "](divergence.png)" in (tmp_path / "report.md").read_text()


def test_nan_survives_the_file_as_valid_json(tmp_path: Path) -> None:
    write_all(sample.nan_metrics(), tmp_path)
    data = json.loads((tmp_path / "run.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["blocks"][1]["errors"]["gpu"]["cumulative"]["relative_l2"] == "NaN"
    assert "| nan |" in (tmp_path / "report.md").read_text()


def test_a_failing_plot_loses_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(record: RunRecord, path: Path) -> None:
        path.write_bytes(b"half a")
        raise RuntimeError("no fonts")

    monkeypatch.setattr(plot, "save", fail)
    record = write_all(sample.overflow(), tmp_path)
    assert record.verdict.notes[-1] == "divergence.png could not be written: RuntimeError: no fonts."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.md", "run.json"]
    assert "plot" not in record.files
    assert "divergence.png)" not in (tmp_path / "report.md").read_text()


def test_a_full_disk_gives_the_record_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RunRecord, folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunRecord, "save", full)
    with pytest.raises(UnwrittenError, match="No space left on device") as caught:
        write_all(sample.overflow(), tmp_path)
    assert caught.value.record == sample.overflow()


def test_every_field_of_the_record_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "run-json.md").read_text(encoding="utf-8")))
    classes = [c for c in vars(nouns).values() if isinstance(c, type) and dataclasses.is_dataclass(c)]
    fields = {field.name for c in classes for field in dataclasses.fields(c)}
    assert len(classes) >= 13
    assert fields - documented == set()


# -- progress ---------------------------------------------------------------------------------------------------------


def drawn(*, terminal: bool, **options: bool) -> str:
    file = io.StringIO()
    with ProgressDrawer(Console(file=file, force_terminal=terminal, width=80), **options) as on_progress:
        on_progress(Progress("convert", state="start"))
        on_progress(Progress("convert", state="done", seconds=3.14, detail="74 ops"))
        on_progress(Progress("run gpu", state="start"))
        on_progress(Progress("prefix 3"))
        on_progress(Progress("run gpu", state="done", seconds=75))
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", file.getvalue())


def test_progress_is_silent_unless_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert drawn(terminal=False) == ""
    assert drawn(terminal=False, quiet=True, verbose=True) == ""
    assert drawn(terminal=True, quiet=True) == ""
    assert "✓ convert               3.1 s  74 ops\n" in drawn(terminal=False, verbose=True)


def test_finished_stages_stay_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    lines = [line.rstrip() for line in drawn(terminal=True).splitlines()]
    assert "✓ convert               3.1 s  74 ops" in lines
    assert "✓ run gpu           1 min 15 s" in lines


def test_what_is_found_on_the_way_is_said_at_once_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    sentence = "On the GPU, blocks.7 is the first block to go wrong: " + "it is off by 0.216 " * 4
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=80)
        with ProgressDrawer(console, verbose=not terminal) as on_progress:
            on_progress(Progress("search", state="start"))
            on_progress(Progress("search", found=sentence))
            before = file.getvalue()
            on_progress(Progress("search", state="done", seconds=1))
        said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", before)
        assert sentence.split() == " ".join(said.split()).partition("▸ ")[2].split()[: len(sentence.split())]
        assert "search" in file.getvalue()[len(before) :]
    file = io.StringIO()
    with ProgressDrawer(Console(file=file, force_terminal=True, width=80), quiet=True) as on_progress:
        on_progress(Progress("search", found=sentence))
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("value", "words"), [(0.44, "0.4 s"), (12.2, "12 s"), (125.0, "2 min 05 s"), (float("nan"), "-")]
)
def test_durations_also_of_runs_that_never_ended(value: float, words: str) -> None:
    assert formats.seconds(value) == words


def test_a_model_that_is_its_own_block_has_nothing_to_look_into() -> None:
    record = sample.overflow()
    name = record.culprits[0].block
    assert formats.look_inside(record, "m.py")
    blocks = tuple(replace(b, module="(model)") if b.name == name else b for b in record.blocks)
    assert formats.look_inside(replace(record, blocks=blocks), "m.py") == ""


def test_the_words_under_the_table_wrap() -> None:
    lines = text_of(sample.overflow(), 50).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("↓ after:"))
    assert " ".join(line.strip() for line in lines[at : at + 2]).endswith("wrong because of a culprit before it")


def test_a_record_at_a_prompt_is_one_line_and_its_report_names_no_command() -> None:
    record = sample.overflow()
    assert len(repr(record)) < 120
    assert str(record.verdict.cause) in repr(record)
    assert record.culprits[0].block in repr(record)
    told = bisect_litert.report(record, width=80)
    assert "\x1b" not in told
    assert headline(record)[len("overflow") :] in told
    assert "bisect-litert " not in told.split("Verdict")[1]
