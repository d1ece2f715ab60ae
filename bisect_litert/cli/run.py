"""`bisect-litert MODEL`: the main job."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bisect_litert.cli.group import DEFAULT_COMMAND
from bisect_litert.cli.printing import print_record, progress
from bisect_litert.cli.refusals import refuse_unused
from bisect_litert.errors import BisectError, ExitCode, naming

if TYPE_CHECKING:
    from bisect_litert.record import RunRecord
    from bisect_litert.request import BisectRequest

POSITIVE = click.FloatRange(min=0, min_open=True)
AT_LEAST_1 = click.FloatRange(min=1)


@click.command(DEFAULT_COMMAND, short_help="Bisect MODEL; the command may be left out.")
@click.argument("model")
@click.option("--blocks", metavar="GLOB", multiple=True, help="Blocks to look at; ** crosses levels. Repeatable.")
@click.option("--inputs", metavar="NPZ", type=click.Path(path_type=Path), help="Inputs to use, by name or position.")
@click.option(
    "--tflite", metavar="FILE", type=click.Path(path_type=Path), help="Bisect this file of MODEL, without converting."
)
@click.option("--signature", metavar="NAME", default="", help="Of a .tflite file, if it has several.")
@click.option(
    "--int-high", metavar="N", type=click.IntRange(min=1), help="Draw a .tflite file's integer inputs below N."
)
@click.option("--seed", default=0, show_default=True, help="Fixes what is random.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Run folder.  [default: bisect-run-...]")
@click.option("--force", is_flag=True, help="Replace an earlier run in --out.")
@click.option("--tap", type=click.Choice(["auto", "reexport"]), default="auto", help="Where to tap.  [default: auto]")
@click.option(
    "--time-limit", metavar="S", type=POSITIVE, default=300, help="Seconds a GPU run may take. [default: 300]"
)
@click.option(
    "--tap-memory", metavar="MB", type=AT_LEAST_1, default=1024, help="Taps one run may return.  [default: 1024]"
)
@click.option("--no-cache", is_flag=True, help="Convert even what was converted before.")
@click.option("--strict", is_flag=True, help="Let refused ops count as a divergence.")
@click.option(
    "--ratio-limit",
    metavar="X",
    type=click.FloatRange(min=1),
    default=10,
    help="Local / expected error of a fault.  [default: 10]",
)
@click.option("--output-limit", metavar="X", type=POSITIVE, default=1e-2, help="Error of an output.  [default: 0.01]")
@click.option("--no-gpu", is_flag=True, help="Judge the emulated fp16 run, GPU or not.")
@click.option("--runner", metavar="CMD", default="", help='Run GPU jobs elsewhere: "ssh HOST", or a command.')
@click.option("--runner-python", metavar="FILE", default="python3", help="Python on HOST.  [default: python3]")
@click.option("--fp32", is_flag=True, help="Judge the GPU in fp32; with --no-gpu the CPU, as the file is.")
@click.option(
    "--runtime", metavar="VERSION", multiple=True, help="Run GPU jobs under that ai-edge-litert. Repeatable: compares."
)
@click.option("--predict", is_flag=True, help="Say which block will overflow, from torch alone, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("--fix", "then_fix", is_flag=True, help="Then try rewrites, and keep what the GPU proves.")
@click.option("--view", "then_view", is_flag=True, help="Open the terminal UI when the run ends.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Every block; progress without a terminal too.")
def run(
    model: str,
    out: Path | None,
    predict: bool,
    as_json: bool,
    then_fix: bool,
    then_view: bool,
    tap_memory: float,
    no_cache: bool,
    quiet: bool,
    verbose: bool,
    runtime: tuple[str, ...],
    **options: Any,
) -> ExitCode:
    """Bisect MODEL: convert it, run it on the GPU, and name the first block that goes wrong."""
    from bisect_litert.errors import RunFolderError
    from bisect_litert.records import run_folder
    from bisect_litert.reports import UnwrittenError
    from bisect_litert.reports.outcome import exit_code
    from bisect_litert.request import BisectRequest, Interrupted

    refuse_unused(click.get_current_context())
    if then_view:
        from bisect_litert.tui import check_terminal

        check_terminal()  # before minutes of work, not after
    folder = run_folder.plan(out, run_folder.label_of(model))
    run_folder.check(folder, options["force"])
    request = BisectRequest(model=model, out=folder, tap_memory=int(tap_memory * 2**20), cache=not no_cache, **options)
    if runtime:
        from bisect_litert.cli.runtimes import resolve_all, survey

        found = resolve_all(runtime, quiet=quiet)
        if len(found) > 1:
            return survey(request, found, as_json=as_json, quiet=quiet, verbose=verbose)
        request = replace(request, python=found[0].python)
    form = "json" if as_json else "text"
    if predict:
        record = _predict(request, save=out is not None, quiet=quiet, verbose=verbose)
        print_record(record, form, None, verbose, model)
        return exit_code(record)
    words = [model, *(str(w) for n in ("tflite", "signature") if options.get(n) for w in (f"--{n}", options[n]))]
    again = shlex.join(words)
    interrupted = False
    try:
        with naming(model), progress(quiet=quiet, verbose=verbose) as on_progress:
            from bisect_litert.entrances import run_bisection

            record = run_bisection(request, on_progress)
    except Interrupted as stop:
        record, interrupted = stop.record, True
    except KeyboardInterrupt:
        click.echo(_kept(folder), err=True)
        return ExitCode.CANNOT_TEST
    except UnwrittenError as error:
        # The answer took minutes, and a terminal has room for it where the disk has none.
        print_record(error.record, form, None, verbose, again)
        raise
    except RunFolderError:
        raise
    except BisectError as error:
        if folder.is_dir():
            error.hint = f"{error.hint}\nLogs and what was computed are in {folder}/.".lstrip()
        raise
    print_record(record, form, folder, verbose, again)
    if interrupted:
        click.echo(_kept(folder), err=True)
        return exit_code(record)
    code = exit_code(record)
    if then_fix:
        from bisect_litert.cli.fix import fix_after

        code = fix_after(record, folder, request, quiet=quiet, verbose=verbose)
    if then_view:
        from bisect_litert.tui import view_record

        view_record(record, folder)
    return code


def _predict(request: BisectRequest, *, save: bool, quiet: bool, verbose: bool) -> RunRecord:
    """Says what will overflow; leaves a run folder only if one was asked for."""
    from bisect_litert.records import run_folder

    with naming(request.model), progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.programs.predicting import run_prediction

        record = run_prediction(request, on_progress)
    if save:
        assert request.out is not None
        record.save(run_folder.create(request.out, run_folder.label_of(request.model), request.force))
    return record


def _kept(folder: Path) -> str:
    from bisect_litert.records.run_folder import MARKER

    if not folder.is_dir():
        return "Stopped before anything was computed; nothing was written."
    kept = sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir() if path.name != MARKER)
    return f"Stopped. {folder}/ keeps what was computed: {', '.join(kept) or 'nothing yet'}."
