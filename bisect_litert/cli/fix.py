"""`bisect-litert fix`: from diagnosis to a proven cure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bisect_litert.cli.printing import emit, progress
from bisect_litert.errors import ExitCode

if TYPE_CHECKING:
    from bisect_litert.record import RunRecord
    from bisect_litert.request import BisectRequest


@click.command(short_help="Try rewrites of RUN's culprits; keep what the GPU proves.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL", help="The model RUN was made of.  [default: found by its name]")
@click.option("--inputs", metavar="NPZ", type=click.Path(path_type=Path), help="The inputs RUN was made with.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to.  [default: RUN/fix]")
@click.option("--tflite", metavar="FILE", type=click.Path(path_type=Path), help="Write the fixed .tflite there, too.")
@click.option("--runner", metavar="CMD", default="", help='Run GPU jobs elsewhere: "ssh HOST", or a command.')
@click.option("--runner-python", metavar="FILE", default="python3", help="Python on HOST.  [default: python3]")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Progress without a terminal, too.")
def fix(
    run: Path,
    model: str | None,
    inputs: Path | None,
    out: Path | None,
    tflite: Path | None,
    runner: str,
    runner_python: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> ExitCode:
    """Try rewrites on the culprits of the run in the folder RUN, and keep what the GPU proves.

    Ends with 0 if no divergence is left.
    """
    from bisect_litert.cli.runtimes import interpreter
    from bisect_litert.record import RunRecord
    from bisect_litert.records.environment import other_runtime
    from bisect_litert.records.fix_record import FIX_FOLDER
    from bisect_litert.reports import fix as report

    folder = run if run.is_dir() else run.parent
    other = "" if runner else other_runtime(RunRecord.load(run))
    python = interpreter(other, quiet=quiet) if other else ""
    place = {"runner": runner, "runner_python": runner_python, "python": python}
    with _stoppable(folder), progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.fixing.run import fix_run

        record = fix_run(run, on_progress, model=model, inputs=inputs, out=out, tflite=tflite, place=place)
    if as_json:
        emit(record.to_json())
    else:
        emit(report.text(record, out or folder / FIX_FOLDER, folder))
    return ExitCode.DIVERGED if record.diverged_after else ExitCode.OK


def fix_after(record: RunRecord, folder: Path, request: BisectRequest, *, quiet: bool, verbose: bool) -> ExitCode:
    """Does what `fix` does for a run that was just made, and ends with what it ends with.

    A run that has nothing to fix keeps its own exit code.
    """
    from bisect_litert.fixing.faults import faults_of
    from bisect_litert.records.fix_record import FIX_FOLDER
    from bisect_litert.reports import fix as report
    from bisect_litert.reports.outcome import exit_code

    if not faults_of(record):
        emit("\nNothing to fix: the run found no culprit.\n")
        return exit_code(record)
    with _stoppable(folder), progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.fixing.run import fix_record

        found = fix_record(record, folder, request, on_progress)
    emit("\n" + report.text(found, folder / FIX_FOLDER, folder))
    return ExitCode.DIVERGED if found.diverged_after else ExitCode.OK


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Lets Ctrl-C say what is kept, and how to start again."""
    from bisect_litert.reports import formats

    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"Stopped. {folder}/ keeps the run and its verdict; of the fix nothing is kept yet.", err=True)
        click.echo(f"To start the fix again: bisect-litert fix {formats.quote(str(folder))}", err=True)
        raise click.exceptions.Exit(ExitCode.CANNOT_TEST) from None
