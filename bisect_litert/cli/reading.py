"""`bisect-litert report`, `view` and `diff`: read run folders; need neither torch nor a GPU."""

from __future__ import annotations

from pathlib import Path

import click

from bisect_litert.cli.printing import FORMATS, emit, print_record, rendered
from bisect_litert.errors import ExitCode


@click.command()
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
        from bisect_litert.records import rethreshold

        record = rethreshold.with_notes(record, rethreshold.parse(tolerance, record.settings))
    print_record(record, form, run if run.is_dir() else run.parent, verbose)
    return ExitCode.OK


@click.command(short_help="Browse a run in the terminal.")
@click.argument("run", metavar="[RUN]", required=False, type=click.Path(path_type=Path))
def view(run: Path | None) -> ExitCode:
    """Browse the run in the folder RUN in the terminal; without RUN, choose one."""
    from bisect_litert import tui

    tui.view(run)
    return ExitCode.OK


@click.command(short_help="Show what changed from one run to another.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "md", "json"]), default="text", help="[default: text]")
@click.option("--view", "in_view", is_flag=True, help="Browse it in the terminal instead.")
@click.option("-v", "--verbose", is_flag=True, help="Every block.")
def diff(before: Path, after: Path, form: str, in_view: bool, verbose: bool) -> ExitCode:
    """Show what changed between the runs in the folders BEFORE and AFTER.

    Ends with 1 if AFTER has a culprit that BEFORE has not.
    """
    from bisect_litert.record import RunRecord
    from bisect_litert.records.comparing import compare_runs
    from bisect_litert.reports import diff as report_diff

    found = compare_runs(before=RunRecord.load(before), after=RunRecord.load(after))
    if in_view:
        from bisect_litert import tui

        tui.view_diff(before, after)
    elif form == "json":
        emit(report_diff.to_json(found))
    elif form == "md":
        emit(report_diff.markdown(found))
    else:
        emit(rendered(lambda console: report_diff.render(found, console, verbose=verbose)))
    return ExitCode.DIVERGED if found.worse else ExitCode.OK
