"""`bisect-litert export` and `ingest`: a device that is reached by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bisect_litert.cli.printing import emit, print_record, progress
from bisect_litert.cli.run import AT_LEAST_1
from bisect_litert.errors import ExitCode, naming


@click.command(short_help="Write what a phone has to run to bisect MODEL there.")
@click.argument("model")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), required=True, help="Where to; new or empty.")
@click.option("--blocks", metavar="GLOB", multiple=True, help="Blocks to look at; ** crosses levels. Repeatable.")
@click.option("--inputs", metavar="NPZ", type=click.Path(path_type=Path), help="Inputs to use, by name or position.")
@click.option("--seed", default=0, show_default=True, help="Fixes what is random.")
@click.option("--tap", type=click.Choice(["auto", "reexport"]), default="auto", help="Where to tap.  [default: auto]")
@click.option("--tap-memory", metavar="MB", type=AT_LEAST_1, default=1024, help="Taps one run may return.")
@click.option("--fp32", is_flag=True, help="Judge the GPU in fp32.")
@click.option("--signature", metavar="NAME", default="", help="Signature of a .tflite file.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Progress without a terminal too.")
def export(model: str, out: Path, tap_memory: float, quiet: bool, verbose: bool, **options: Any) -> ExitCode:
    """Write what a device has to run to bisect MODEL there, in particular an Android phone.

    DIR/round1 holds the graphs, inputs, a manifest and a README with the steps. What the device brings back is for
    `ingest`.
    """
    from bisect_litert.request import BisectRequest

    request = BisectRequest(model=model, tap_memory=int(tap_memory * 2**20), **options)
    with naming(model), progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.devices.exporting import export as write

        made = write(request, out, on_progress)
    emit(f"{made}/ is for the device; {made}/README.txt has the steps. Then: bisect-litert ingest {out} RESULTS\n")
    return ExitCode.OK


@click.command(short_help="Bisect with what a phone brought back.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("results", required=False, type=click.Path(path_type=Path))
@click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="Run folder.  [default: bisect-run-...]")
@click.option("--force", is_flag=True, help="Replace an earlier run in --out.")
@click.option("--model", metavar="MODEL", help="The model, if it is not where it was.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Every block; progress without a terminal too.")
def ingest(
    folder: Path,
    results: Path | None,
    out: Path | None,
    force: bool,
    model: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> ExitCode:
    """Bisect with what a device brought back for the export in DIR.

    RESULTS is the folder the device wrote; without it, DIR/results. Results of all rounds add up. What they leave open
    is asked for in DIR/round2 and so on.
    """
    from bisect_litert.records import run_folder
    from bisect_litert.reports.outcome import exit_code

    run = run_folder.plan(out, folder.resolve().name)
    force = force or run_folder.is_undecided(run)  # an ingest that had nothing to go on does not block the next one
    run_folder.check(run, force)
    with progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.devices.exporting import ingest as go_on

        record, more = go_on(folder, results, {"out": run, "force": force, "model": model}, on_progress)
    print_record(record, "json" if as_json else "text", run, verbose)
    if more is not None:
        click.echo(f"{more}/ asks for further runs that would tell more; its README.txt has the steps.", err=True)
    return exit_code(record)
