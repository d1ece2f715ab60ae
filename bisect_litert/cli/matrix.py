"""`bisect-litert matrix`: many models on many targets."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from bisect_litert.cli.printing import emit, rendered
from bisect_litert.errors import ExitCode


@click.command(short_help="Run every model of a list on every target.")
@click.argument("plan", metavar="MODELS.toml", type=click.Path(path_type=Path))
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to.  [default: bisect-matrix-MODELS]"
)
@click.option("--only", metavar="GLOB", multiple=True, help="Run only these models. Repeatable.")
@click.option("--target", "targets", metavar="NAME", multiple=True, help="Run only these targets. Repeatable.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="Models at a time.  [default: 1]")
@click.option("--scheduler", metavar="ADDRESS", default="", help="Run the cells on a Dask cluster.")
@click.option("--retry", is_flag=True, help="Run again what failed or found no target.")
@click.option("--fresh", is_flag=True, help="Run everything again.")
@click.option("--baseline", metavar="OLD.json", type=click.Path(path_type=Path), help="Mark what changed since.")
@click.option(
    "--factor", metavar="X", type=click.FloatRange(min=1), default=2, help="Worse by more counts.  [default: 2]"
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "md", "json", "csv", "junit"]),
    default="text",
    help="[default: text]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def matrix(
    plan: Path,
    out: Path | None,
    only: tuple[str, ...],
    targets: tuple[str, ...],
    jobs: int,
    scheduler: str,
    retry: bool,
    fresh: bool,
    baseline: Path | None,
    factor: float,
    form: str,
    quiet: bool,
) -> ExitCode:
    """Run every model of a list on every target, and make one table of it.

    A run that was stopped goes on where it stopped; cells that nothing changed for are not run again. Ends with 1 if a
    cell diverges, or with --baseline if one got worse.
    """
    from bisect_litert.matrix import plan_file
    from bisect_litert.matrix.baseline import Baseline
    from bisect_litert.matrix.reports import terminal
    from bisect_litert.matrix.running import MatrixStopped, Wishes, run_matrix
    from bisect_litert.matrix.table import Matrix

    # What ends a job of CI is no reason to lose more than Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    asked = plan_file.read(plan)
    before = Baseline(Matrix.load(baseline), factor) if baseline else None
    folder = out or Path(f"bisect-matrix-{plan.stem}")
    wishes = Wishes(folder, jobs, scheduler, only, targets, retry, fresh, before)
    say = (lambda *_: None) if quiet else (lambda *told: click.echo(terminal.progress(*told), err=True))
    try:
        found = run_matrix(asked, wishes, say)
    except MatrixStopped as stop:
        stopped = stop.matrix
        click.echo(f"Stopped. {folder}/ keeps what is finished; the same command goes on from there.", err=True)
        emit(rendered(lambda console: terminal.render(stopped, console, folder)))
        return ExitCode.CANNOT_TEST
    if form == "text":
        emit(rendered(lambda console: terminal.render(found, console, folder)))
    else:
        emit(terminal.other(found, form))
    return found.exit_code
