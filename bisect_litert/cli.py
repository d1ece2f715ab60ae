"""The command line. A command parses, calls one function, prints; only `main` prints errors and picks exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bisect_litert.errors import BisectError, ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from bisect_litert.record import RunRecord

PROGRAM = "bisect-litert"
DEFAULT_COMMAND = "run"
FORMATS = ("text", "md", "json", "junit", "sarif", "csv")


class _DefaultGroup(click.Group):
    """A group whose first word is a model unless it is a command: `model.py` is `run model.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            _refuse_typo(ctx, args[0], list(self.commands))
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(PROGRAM, "MODEL [OPTIONS]")
        formatter.write_usage(PROGRAM, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run = self.commands[DEFAULT_COMMAND]
        params = [param for param in run.params if isinstance(param, click.Option)]
        rows = [row for param in params if (row := param.get_help_record(ctx))]
        own = [row for param in self.get_params(ctx) if (row := param.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl([*rows, *own])
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_text("0 no divergence, 1 divergence, 2 usage, 125 could not test, 255 a bug of ours")


def _refuse_typo(ctx: click.Context, word: str, commands: list[str]) -> None:
    if word.isalpha() and not Path(word).exists():
        near = get_close_matches(word, commands, n=1, cutoff=0.7)
        if near:
            raise click.UsageError(f"{word!r} is no command and no model file. Did you mean {near[0]!r}?", ctx)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"{PROGRAM} {version(PROGRAM)}")
        except PackageNotFoundError:
            click.echo(f"{PROGRAM} (not installed)")
        ctx.exit()


_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_DefaultGroup, context_settings=_CONTEXT, no_args_is_help=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Name the first block of a PyTorch model whose GPU result in LiteRT goes wrong, and say why.

    MODEL is a Python file that defines model and inputs (or get_model and get_inputs); FILE:NAME and
    package.module:NAME pick another name.
    """


_POSITIVE = click.FloatRange(min=0, min_open=True)
_AT_LEAST_1 = click.FloatRange(min=1)


@cli.command(DEFAULT_COMMAND, short_help="Bisect MODEL; the command may be left out.")
@click.argument("model")
@click.option("--blocks", metavar="GLOB", multiple=True, help="Blocks to look at; ** crosses levels. Repeatable.")
@click.option("--inputs", metavar="NPZ", type=click.Path(path_type=Path), help="Inputs to use, by name or position.")
@click.option("--seed", default=0, show_default=True, help="Fixes what is random.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Run folder.  [default: bisect-run-...]")
@click.option("--force", is_flag=True, help="Replace an earlier run in --out.")
@click.option("--tap", type=click.Choice(["auto", "reexport"]), default="auto", help="Where to tap.  [default: auto]")
@click.option(
    "--time-limit", metavar="S", type=_POSITIVE, default=300, help="Seconds a GPU run may take. [default: 300]"
)
@click.option(
    "--tap-memory", metavar="MB", type=_AT_LEAST_1, default=1024, help="Taps one run may return.  [default: 1024]"
)
@click.option("--strict", is_flag=True, help="Let refused ops count as a divergence.")
@click.option(
    "--ratio-limit",
    metavar="X",
    type=click.FloatRange(min=1),
    default=10,
    help="Local / expected error of a fault.  [default: 10]",
)
@click.option("--output-limit", metavar="X", type=_POSITIVE, default=1e-2, help="Error of an output.  [default: 0.01]")
@click.option("--no-gpu", is_flag=True, help="Judge the emulated fp16 run, GPU or not.")
@click.option("--predict", is_flag=True, help="Say which block will overflow, from torch alone, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("--view", "then_view", is_flag=True, help="Open the terminal UI when the run ends.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Every block; progress without a terminal too.")
def run(
    model: str,
    out: Path | None,
    predict: bool,
    as_json: bool,
    then_view: bool,
    tap_memory: float,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> ExitCode:
    """Bisect MODEL: convert it, run it on the GPU, and name the first block that goes wrong."""
    from bisect_litert import run_folder
    from bisect_litert.errors import RunFolderError
    from bisect_litert.reports import UnwrittenError
    from bisect_litert.reports.outcome import exit_code
    from bisect_litert.reports.progress import ProgressDrawer
    from bisect_litert.request import BisectRequest, Interrupted

    if predict and then_view:
        raise click.UsageError("--view opens a run, and --predict makes none.")
    if then_view:
        from bisect_litert.tui import check_terminal

        check_terminal()  # before minutes of work, not after
    folder = run_folder.plan(out, run_folder.label_of(model))
    run_folder.check(folder, options["force"])
    request = BisectRequest(model=model, out=folder, tap_memory=int(tap_memory * 2**20), **options)
    form = "json" if as_json else "text"
    interrupted = False
    if predict:
        with _progress_console() as err, ProgressDrawer(err, quiet=quiet, verbose=verbose) as on_progress:
            from bisect_litert.predicting import run_prediction

            record = run_prediction(request, on_progress)
        if out is not None:
            record.save(run_folder.create(out, run_folder.label_of(model), options["force"]))
        _print_record(record, form, None, verbose, model)
        return exit_code(record)
    try:
        with _progress_console() as err, ProgressDrawer(err, quiet=quiet, verbose=verbose) as on_progress:
            from bisect_litert.bisection import run_bisection

            record = run_bisection(request, on_progress)
    except Interrupted as stop:
        record, interrupted = stop.record, True
    except KeyboardInterrupt:
        click.echo(_kept(folder), err=True)
        return ExitCode.CANNOT_TEST
    except UnwrittenError as error:
        # The answer took minutes, and a terminal has room for it where the disk has none.
        _print_record(error.record, form, None, verbose, model)
        raise
    except RunFolderError:
        raise
    except BisectError as error:
        if folder.is_dir():
            error.hint = f"{error.hint}\nLogs and what was computed are in {folder}/.".lstrip()
        raise
    _print_record(record, form, folder, verbose, model)
    if interrupted:
        click.echo(_kept(folder), err=True)
    elif then_view:
        from bisect_litert.tui import view_record

        view_record(record, folder)
    return exit_code(record)


@cli.command()
@click.argument("model")
@click.option("--blocks", metavar="GLOB", multiple=True, help="List only these; ** crosses levels. Repeatable.")
@click.option(
    "--inputs", metavar="FILE.npz", type=click.Path(path_type=Path), help="Use these inputs, by name or position."
)
@click.option("--seed", default=0, show_default=True, help="Fixes what is random.")
def blocks(model: str, blocks: tuple[str, ...], inputs: Path | None, seed: int) -> ExitCode:
    """List what --blocks can select, without converting."""
    from bisect_litert.bisection import list_blocks
    from bisect_litert.reports.block_list import render

    rows = [row for row in list_blocks(model, blocks, inputs, seed) if row.selected or not blocks]
    _emit(_rendered(lambda console: render(rows, console)))
    return ExitCode.OK


@cli.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="[default: text]")
@click.option(
    "--tolerance",
    metavar="NAME=X",
    multiple=True,
    help="Judge the stored numbers again with another ratio, output, jump or conversion. Repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Every block.")
def report(run: Path, form: str, tolerance: tuple[str, ...], verbose: bool) -> ExitCode:
    """Show again what the run in the folder RUN found."""
    from bisect_litert.record import RunRecord

    record = RunRecord.load(run)
    if tolerance:
        from bisect_litert import rethreshold

        record = rethreshold.with_notes(record, rethreshold.parse(tolerance, record.settings))
    _print_record(record, form, run if run.is_dir() else run.parent, verbose)
    return ExitCode.OK


@cli.command()
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
def view(run: Path | None) -> ExitCode:
    """Browse the run in the folder RUN in the terminal; without RUN, choose one."""
    from bisect_litert import tui

    tui.view(run)
    return ExitCode.OK


@cli.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "md", "json"]), default="text", help="[default: text]")
@click.option("--view", "in_view", is_flag=True, help="Browse it in the terminal instead.")
@click.option("-v", "--verbose", is_flag=True, help="Every block.")
def diff(before: Path, after: Path, form: str, in_view: bool, verbose: bool) -> ExitCode:
    """Show what changed between the runs in the folders BEFORE and AFTER.

    Ends with 1 if AFTER has a culprit that BEFORE has not.
    """
    from bisect_litert.comparing import compare_runs
    from bisect_litert.record import RunRecord
    from bisect_litert.reports import diff as report_diff

    found = compare_runs(before=RunRecord.load(before), after=RunRecord.load(after))
    if in_view:
        from bisect_litert import tui

        tui.view_diff(before, after)
    elif form == "json":
        _emit(report_diff.to_json(found))
    elif form == "md":
        _emit(report_diff.markdown(found))
    else:
        _emit(_rendered(lambda console: report_diff.render(found, console, verbose=verbose)))
    return ExitCode.DIVERGED if found.worse else ExitCode.OK


@cli.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to.  [default: RUN-bundle]")
@click.option("--culprit", metavar="N", default=1, show_default=True, help="Which culprit to report.")
@click.option("--no-weights", is_flag=True, help="Random weights, if the fault still shows.")
@click.option("--no-inputs", is_flag=True, help="Random inputs, if the fault still shows.")
@click.option("--python", metavar="FILE", multiple=True, help="Try another ai-edge-litert, too. Repeatable.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and no list of what it holds.")
def bundle(
    run: Path,
    out: Path | None,
    culprit: int,
    no_weights: bool,
    no_inputs: bool,
    python: tuple[str, ...],
    quiet: bool,
) -> ExitCode:
    """Make a bug report of the run in the folder RUN: one folder and one zip, ready to attach.

    Holds ISSUE.md, and the smallest .tflite that still fails here with a script that shows it.
    """
    from bisect_litert.bundling import Wishes, make_bundle

    say = (lambda _: None) if quiet else (lambda line: click.echo(line, err=True))
    made = make_bundle(run, Wishes(out, culprit, not no_weights, not no_inputs, python), say)
    _emit(made.summary())
    return ExitCode.OK


@cli.command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path, exists=True))
@click.option("--python", metavar="FILE", default=sys.executable, help="Interpreter with another ai-edge-litert.")
@click.option("-v", "--verbose", is_flag=True, help="What the reproduction prints, too.")
def replay(bundle: Path, python: str, verbose: bool) -> ExitCode:
    """Run the reproduction of a bundle (folder or zip) here: same, fixed, or different.

    Ends as `git bisect run` wants it: 1 same or different, 0 fixed, 125 cannot be tested here.
    """
    from bisect_litert.replaying import replay as run_again

    found = run_again(bundle, python)
    _emit((f"{found.text}\n" if verbose else "") + found.summary())
    return found.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: What follows the program's name; the process's own without it.
    """
    for stream in (sys.stdout, sys.stderr):
        # A name that the locale cannot write must not cost the report.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # Not cli.main(): it ends a closed pipe with 1, which here means "diverged".
        with cli.make_context(PROGRAM, words) as context:
            code = cli.invoke(context)
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nStopped.", err=True)
        return ExitCode.CANNOT_TEST
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.OK
    except BisectError as error:
        _print_error(error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        click.echo(f"error: this is a bug of {PROGRAM}; please report it with the traceback above.", err=True)
        return ExitCode.INTERNAL


def _print_error(error: BisectError) -> None:
    click.echo(click.style("error:", fg="red", bold=True) + f" {error.message}", err=True)
    if error.hint:
        click.echo(error.hint, err=True)
    if error.detail:
        click.echo(f"\n{error.detail.rstrip()}", err=True)


def _kept(folder: Path) -> str:
    from bisect_litert.run_folder import MARKER

    if not folder.is_dir():
        return "Stopped before anything was computed; nothing was written."
    kept = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if path.name != MARKER)
    return f"Stopped. {folder}/ keeps what was computed: {', '.join(kept) or 'nothing yet'}."


def _print_record(record: RunRecord, form: str, folder: Path | None, verbose: bool, model: str = "") -> None:
    from bisect_litert.reports.outcome import PREDICTED

    if form == "json":
        _emit(record.to_json())
    elif form in ("junit", "sarif", "csv"):
        from bisect_litert.reports import accuracy_csv, junit, sarif

        _emit({"junit": junit, "sarif": sarif, "csv": accuracy_csv}[form].render(record))
    elif record.target == PREDICTED:
        from bisect_litert.reports import prediction

        if form == "md":
            _emit(prediction.markdown(record))
        else:
            _emit(_rendered(lambda console: prediction.render(record, console, verbose=verbose)))
    elif form == "md":
        from bisect_litert.reports import markdown

        _emit(markdown.render(record))
    else:
        from bisect_litert.reports import console as text

        _emit(_rendered(lambda console: text.render(record, console, folder=folder, model=model, verbose=verbose)))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def _progress_console() -> Iterator[Console]:
    """A console on stderr, on a descriptor of its own: while the converter runs, its log takes the place of stderr."""
    from rich.console import Console

    if not sys.stderr.isatty():
        yield Console(stderr=True, highlight=False)
        return
    with open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace") as terminal:
        yield Console(file=terminal, highlight=False)


def _emit(text: str) -> None:
    with _stdout():
        sys.stdout.write(text)
        sys.stdout.flush()


def _rendered(draw: Callable[[Console], None]) -> str:
    """Returns what `draw` prints on stdout; captured, because rich itself ends a closed pipe with exit code 1."""
    console = _console()
    # rich writes an empty string to the real stdout at the end, which alone fails where that is full.
    with _stdout(), console.capture() as capture:
        draw(console)
    return capture.get()


@contextmanager
def _stdout() -> Iterator[None]:
    """Lets a reader that has seen enough (`| head`) go without an error, and says so where stdout is really gone.

    Raises:
        UsageError: What holds stdout takes no more, for another reason than a closed pipe.
    """
    try:
        yield
    except OSError as error:
        _silence_stdout()
        if error.errno != errno.EPIPE:
            message = f"The answer cannot be written to stdout: {error.strerror}."
            raise UsageError(message, hint="Redirect it elsewhere.") from None


def _silence_stdout() -> None:
    # The interpreter flushes stdout once more on its way out, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
