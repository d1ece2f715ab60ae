from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from math import inf, nan
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import sample_record as sample
from click.testing import CliRunner

from bisect_litert import cli
from bisect_litert.errors import ConversionError, ExitCode, RunFolderError
from bisect_litert.record import RunRecord
from bisect_litert.records import run_folder
from bisect_litert.records.fix_record import FixRecord
from bisect_litert.reports import UnwrittenError, markdown, write_all
from bisect_litert.request import BisectRequest, BlockLine, Interrupted

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "litert_torch", "ai_edge_litert", "matplotlib", "numpy")


class Bisection(ModuleType):
    """Stands in for entrances.py, which needs minutes and torch, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__("bisect_litert.entrances")
        self.requests: list[BisectRequest] = []
        self.result: RunRecord | BaseException = sample.overflow()
        self.meanwhile: Callable[[Path], object] = lambda folder: None

    def run_bisection(self, request: BisectRequest, on_progress: object) -> RunRecord:
        self.requests.append(request)
        assert request.out
        folder = run_folder.create(request.out, "m", request.force)
        self.meanwhile(folder)
        if isinstance(self.result, BaseException):
            raise self.result
        return write_all(self.result, folder)


class Opening(ModuleType):
    """Stands in for subjects/opening.py, which runs the model to list its blocks."""

    def __init__(self) -> None:
        super().__init__("bisect_litert.subjects.opening")
        self.requests: list[BisectRequest] = []

    def list_blocks(self, request: BisectRequest) -> tuple[BlockLine, ...]:
        self.requests.append(request)
        return (
            BlockLine("enc", "ModuleList", 1, (), False),
            BlockLine("enc.0", "Block", 2, ("1x16x64",), True),
        )


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bisection:
    fake = Bisection()
    monkeypatch.setitem(sys.modules, "bisect_litert.entrances", fake)
    monkeypatch.chdir(tmp_path)
    return fake


# -- what a word means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["blocks.py"], ["run", "blocks.py"], ["--seed", "3", "blocks.py"], ["run", "report"]]
)
def test_a_first_word_that_is_no_command_is_a_model(job: Bisection, words: list[str]) -> None:
    assert cli.main(words) == ExitCode.DIVERGED
    assert job.requests[0].model == words[-1]


def test_every_option_reaches_the_request(job: Bisection) -> None:
    words = "m.py --blocks a.* --blocks b --inputs x.npz --seed 7 --out here --force --tap reexport --time-limit 9"
    cli.main(f"{words} --strict --ratio-limit 20 --output-limit 0.5 --no-gpu -q".split())
    assert job.requests == [
        BisectRequest(
            model="m.py", blocks=("a.*", "b"), inputs=Path("x.npz"), seed=7, out=Path("here"), force=True,
            tap="reexport", time_limit=9.0, strict=True, ratio_limit=20.0, output_limit=0.5, no_gpu=True,
        )
    ]  # fmt: skip


def test_the_defaults_are_those_of_the_request(job: Bisection) -> None:
    cli.main(["m.py"])
    assert job.requests == [BisectRequest(model="m.py", out=job.requests[0].out)]
    assert BisectRequest(model="m.py").settings() == sample.Settings()


@pytest.mark.parametrize(
    "words",
    [["m.py", "--sed", "1"], ["m.py", "more"], ["run"], ["m.py", "--seed", "x"], ["m.py", "--ratio-limit", "0"],
     ["reprot", "RUN"], ["report"], ["m.py", "--time-limit", "0"], []],
)  # fmt: skip
def test_a_wrong_command_line_is_exit_2(job: Bisection, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == ExitCode.USAGE
    assert job.requests == []
    err = capsys.readouterr().err
    if words:  # as every other error: what is wrong, and where to go on
        assert err.startswith("error: ")
        assert "Usage and options: bisect-litert" in err.splitlines()[1]
    else:
        assert err.startswith("Usage: bisect-litert")


def test_a_mistyped_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["reprot", "RUN"])
    assert "Did you mean 'report'?" in capsys.readouterr().err


def test_help_shows_how_to_run_and_the_commands() -> None:
    result = CliRunner().invoke(cli.cli, ["--help"])
    assert result.exit_code == 0
    for word in (
        "bisect-litert MODEL [OPTIONS]",
        "bisect-litert COMMAND",
        "--ratio-limit",
        "  report",
        "125 could not test",
    ):
        assert word in result.output
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["report", "--help"], ["run", "-h"]])
def test_help_and_version_are_exit_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == ExitCode.OK
    assert "bisect-litert" in capsys.readouterr().out


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_prints_the_answer_and_leaves_the_folder(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models/enc.py", "--blocks", "enc.*"]) == ExitCode.DIVERGED
    out, err = capsys.readouterr()
    (folder,) = Path().glob("bisect-run-enc-*")
    assert f"bisect-litert report {folder}\n" in out
    # With its folder, which the record does not hold.
    assert 'bisect-litert models/enc.py --blocks "enc.b3.**"\n' in out
    assert "Verdict    OVERFLOW in enc.b3" in out
    assert err == ""
    assert {path.name for path in folder.iterdir()} == {run_folder.MARKER, "run.json", "report.md", "divergence.png"}


@pytest.mark.parametrize(
    ("record", "code"),
    [(sample.healthy(), 0), (sample.overflow(), 1), (sample.emulated(), 1), (sample.cannot_test(), 125)],
)
def test_the_exit_code_is_the_verdict(job: Bisection, record: RunRecord, code: int) -> None:
    job.result = record
    assert cli.main(["m.py"]) == code


def test_json_is_the_record_and_nothing_else(
    job: Bisection, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job.result = sample.nan_metrics()
    cli.main(["m.py", "--json", "--out", "r"])
    assert capsys.readouterr().out == (tmp_path / "r" / "run.json").read_text()


def test_an_error_says_what_and_what_next(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    job.result = ConversionError("litert-torch cannot convert aten.foo.", hint="Rewrite enc.b3.", detail="its words")
    assert cli.main(["m.py", "--out", "r"]) == ExitCode.CANNOT_TEST
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: litert-torch cannot convert aten.foo.\nRewrite enc.b3.\n"
        "Logs and what was computed are in r/.\n\nits words\n"
    )


def test_a_bug_keeps_its_traceback(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    job.result = ZeroDivisionError("oops")
    assert cli.main(["m.py"]) == ExitCode.INTERNAL
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "ZeroDivisionError: oops" in err
    assert "this is a bug of bisect-litert" in err


def test_ctrl_c_says_what_is_kept(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    job.result = KeyboardInterrupt()
    job.meanwhile = lambda folder: (folder / "logs").mkdir()
    assert cli.main(["m.py", "--out", "r"]) == ExitCode.CANNOT_TEST
    assert capsys.readouterr().err == "Stopped. r/ keeps what was computed: logs/.\n"


def test_ctrl_c_with_a_verdict_shows_it(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    job.result = Interrupted(sample.overflow())
    assert cli.main(["m.py", "--out", "r"]) == ExitCode.DIVERGED
    out, err = capsys.readouterr()
    assert "OVERFLOW in enc.b3" in out
    assert err.startswith("Stopped. r/ keeps")


def test_a_full_disk_still_prints_the_answer(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    job.result = UnwrittenError(sample.overflow(), "r cannot be written: No space left on device.", hint="Free some.")
    assert cli.main(["m.py", "--out", "r"]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert "OVERFLOW in enc.b3" in out
    assert "Files" not in out
    assert "No space left" in err


def test_a_fix_ends_with_what_is_left_and_says_where_it_lies(
    job: Bisection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixing = ModuleType("bisect_litert.fixing.run")
    monkeypatch.setitem(sys.modules, fixing.__name__, fixing)
    files = {"rewrites.py": "apply(model) makes the replacements"}
    made = FixRecord("m.py", "gpu", (), True, False, inf, 1e-4, 0.0, nan, None, "", 1.0, {}, files=files)
    fixing.__dict__["fix_record"] = lambda *_, **__: made
    assert cli.main(["m.py", "--fix", "--out", "r", "-q"]) == ExitCode.OK
    told = capsys.readouterr().out
    assert "files      r/fix/\n" in told
    assert "outputs    not finite before, off by 1.0e-4 after\n" in told
    assert "copy r/fix/rewrites.py beside your code" in told
    left = replace(made, diverged_after=True)
    fixing.__dict__["fix_record"] = lambda *_, **__: left
    assert cli.main(["m.py", "--fix", "--out", "r", "--force", "-q"]) == ExitCode.DIVERGED
    assert "bisect-litert bundle r, to report what is left" in capsys.readouterr().out

    def stopped(*_: object, **__: object) -> FixRecord:
        raise KeyboardInterrupt

    fixing.__dict__["fix_record"] = stopped
    assert cli.main(["m.py", "--fix", "--out", "r", "--force", "-q"]) == ExitCode.CANNOT_TEST
    assert "r/ keeps the run and its verdict" in (err := capsys.readouterr().err)
    assert "bisect-litert fix r\n" in err
    job.result = sample.healthy()
    assert cli.main(["m.py", "--fix", "--out", "r", "--force", "-q"]) == ExitCode.OK
    assert "Nothing to fix" in capsys.readouterr().out


# -- blocks and report ------------------------------------------------------------------------------------------------


def test_blocks_lists_what_can_be_selected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opening = Opening()
    monkeypatch.setitem(sys.modules, opening.__name__, opening)
    assert cli.main(["blocks", "m.py"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert opening.requests == [BisectRequest(model="m.py")]
    assert [line.split() for line in lines[1:3]] == [
        ["enc", "ModuleList", "1", "-"],
        ["*", "enc.0", "Block", "2", "1x16x64"],
    ]
    cli.main(["blocks", "m.py", "--blocks", "enc.*"])
    assert "ModuleList" not in capsys.readouterr().out


def test_report_shows_a_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = write_all(sample.overflow(), tmp_path)
    assert cli.main(["report", str(tmp_path)]) == ExitCode.OK
    assert "Verdict    OVERFLOW in enc.b3" in capsys.readouterr().out
    assert cli.main(["report", str(tmp_path / "run.json"), "--format", "md"]) == ExitCode.OK
    assert capsys.readouterr().out == markdown.render(record) == (tmp_path / "report.md").read_text()
    assert cli.main(["report", str(tmp_path), "--format", "json"]) == ExitCode.OK
    assert capsys.readouterr().out == record.to_json()


def test_report_refuses_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == ExitCode.USAGE
    assert "has no run.json" in capsys.readouterr().err


# -- the run folder ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "label"),
    [("models/enc.py", "enc"), ("enc.py:Net", "enc"), ("pkg.models.enc:Net", "enc"), ("pkg.enc", "enc"),
     ("a b.py", "a-b"), ("net.v2.py", "net.v2"), ("m.tflite", "m"), ("..", "model")],
)  # fmt: skip
def test_the_folder_is_named_after_the_model(model: str, label: str) -> None:
    assert run_folder.label_of(model) == label


def test_two_runs_in_one_second_get_two_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 3, 1, 12, 0, 0)
    first = run_folder.plan(None, "enc", now)
    assert first == Path("bisect-run-enc-20260301-120000")
    run_folder.create(first, "enc", False)
    assert run_folder.plan(None, "enc", now) == Path("bisect-run-enc-20260301-120000-2")


def test_an_earlier_run_is_replaced_only_with_force(job: Bisection, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["m.py", "--out", "r"]) == 1
    assert cli.main(["m.py", "--out", "r"]) == ExitCode.USAGE
    assert "replace that run with --force" in capsys.readouterr().err
    job.result = sample.healthy()
    assert cli.main(["m.py", "--out", "r", "--force"]) == ExitCode.OK
    assert RunRecord.load(Path("r")).verdict.cause.value == "none"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_other_peoples_files_are_never_touched(job: Bisection, tmp_path: Path, force: list[str]) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "report.md").write_text("mine")
    assert cli.main(["m.py", "--out", "r", *force]) == ExitCode.USAGE
    assert job.requests == []
    assert [(p.name, p.read_text()) for p in (tmp_path / "r").iterdir()] == [("report.md", "mine")]


def test_force_deletes_only_what_a_run_writes(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path / "r", "m", False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep.npy").write_text("mine")
    (folder / "tensors").symlink_to(elsewhere)
    (folder / "logs").mkdir()
    for name in ("run.json", "report.md", "logs/gpu.log", "notes.txt", "logs/mine.txt", "weights.npy"):
        (folder / name).write_text("x")
    run_folder.create(folder, "m", True)
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    assert left == [run_folder.MARKER, "logs/mine.txt", "notes.txt", "weights.npy"]
    assert (elsewhere / "keep.npy").read_text() == "mine"


def test_a_folder_that_lost_its_marker_is_known_by_its_record(tmp_path: Path) -> None:
    write_all(sample.overflow(), tmp_path)
    assert run_folder.is_run_folder(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 1}')
    assert not run_folder.is_run_folder(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        run_folder.create(tmp_path / "file", "m", False)
    with pytest.raises(RunFolderError, match="cannot be written: Not a directory"):
        run_folder.create(tmp_path / "file" / "r", "m", False)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RunFolderError, match="cannot be written: Permission denied") as caught:
        run_folder.create(tmp_path / "r", "m", False)
    assert "--out" in caught.value.hint


# -- clean interpreters -----------------------------------------------------------------------------------------------


def python(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *words],
        env=environment,
        capture_output=True,
        text=True,
    )


# numpy and matplotlib are looked for too: not forbidden to a report, but a report in text has no use for them.
LISTING = """
    import sys
    from bisect_litert.cli import main
    code = main(sys.argv[2:])
    print([name for name in sys.argv[1].split() if name in sys.modules], file=sys.stderr)
    sys.exit(code)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["report", "RUN"], ["report", "RUN", "--format", "md"],
     ["report", "RUN", "--tolerance", "ratio=20"]],
)  # fmt: skip
def test_what_only_reads_imports_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    sample.overflow().save(tmp_path)
    done = python(LISTING, " ".join(HEAVY), *[str(tmp_path) if word == "RUN" else word for word in words])
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"


def test_the_import_test_can_fail() -> None:
    done = python("import json\n" + textwrap.dedent(LISTING), "json click torch", "--version")
    assert done.stderr == "['json', 'click']\n"


def test_reports_do_without_torch_and_litert_even_for_the_plot(tmp_path: Path) -> None:
    sample.overflow().save(tmp_path)
    blocked = """
        import sys
        sys.modules.update({name: None for name in ("torch", "litert_torch", "ai_edge_litert")})
        from pathlib import Path
        from bisect_litert.record import RunRecord
        from bisect_litert.reports import write_all
        record = write_all(RunRecord.load(Path(sys.argv[1])), Path(sys.argv[1]))
        print(sorted(record.files))
    """
    done = python(blocked, str(tmp_path))
    assert done.stdout == "['logs', 'plot', 'report']\n", done.stderr


def test_the_first_screen_needs_none_of_what_reads_tensors() -> None:
    wanted = (
        "torch litert_torch ai_edge_litert matplotlib bisect_litert.tui.tensor_facts bisect_litert.measuring.metrics"
    )
    code = "import sys, bisect_litert.tui.app; print([name for name in sys.argv[1].split() if name in sys.modules])"
    assert python(code, wanted).stdout == "[]\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from bisect_litert.cli import main; main(['--help']); "
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich', 'cattrs', 'textual', 'ai_edge_litert'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = python(code)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    write_all(replace(sample.many(300), verdict=sample.overflow().verdict), tmp_path)
    command = f"{sys.executable} -m bisect_litert report -v {tmp_path}"
    for form in ("text", "json", "md"):
        script = f"set -o pipefail; {command} --format {form} | head -c 100 >/dev/null"
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_stdout_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    write_all(sample.overflow(), tmp_path)
    script = f"{sys.executable} -m bisect_litert report {tmp_path} >/dev/full"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith("error: The answer cannot be written to stdout: No space left on device.\n")


def test_a_real_ctrl_c_leaves_what_there_is(tmp_path: Path) -> None:
    code = """
        import signal, sys, time, types
        # A background job of a shell is started with Ctrl-C ignored; this one is not to be.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from bisect_litert.records import run_folder
        fake = types.ModuleType("bisect_litert.entrances")
        def run_bisection(request, on_progress):
            folder = run_folder.create(request.out, "m", False)
            (folder / "logs").mkdir()
            print("running", flush=True)
            time.sleep(30)
        fake.run_bisection = run_bisection
        sys.modules["bisect_litert.entrances"] = fake
        from bisect_litert.cli import main
        sys.exit(main(["m.py", "--out", "r"]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == ExitCode.CANNOT_TEST
    assert err == "Stopped. r/ keeps what was computed: logs/.\n"


def test_block_rows_of_any_kind_are_listed() -> None:
    from rich.console import Console

    from bisect_litert.reports.block_list import render

    rows = [SimpleNamespace(name="x" * 70, class_name="C", calls=1, shapes=("1x2",), selected=False)]
    console = Console(width=80)
    with console.capture() as capture:
        render(rows, console)
    assert "x" * 70 in capture.get()
    assert all(len(line) <= 80 for line in capture.get().splitlines())
    # A shape is worth more than the end of a class's name.
    rows = [SimpleNamespace(name="x" * 46, class_name="Attention" * 2, calls=1, shapes=("1x16x64",), selected=False)]
    with console.capture() as capture:
        render(rows, console)
    assert capture.get().splitlines()[1].endswith("  1x16x64")
