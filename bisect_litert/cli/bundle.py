"""`bisect-litert bundle` and `replay`: the bug report, and running it elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bisect_litert.cli.printing import emit
from bisect_litert.errors import ExitCode


@click.command(short_help="Make a bug report of RUN: a folder and a zip.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where to.  [default: RUN-bundle]")
@click.option("--culprit", metavar="N", default=1, show_default=True, help="Which culprit to report.")
@click.option("--no-weights", is_flag=True, help="Random weights, if the fault still shows.")
@click.option("--no-inputs", is_flag=True, help="Random inputs, if the fault still shows.")
@click.option("--no-twin", is_flag=True, help="Without the PyTorch twin, which takes a few conversions.")
@click.option(
    "--python", metavar="VERSION", multiple=True, help="Try that ai-edge-litert, too, or an interpreter. Repeatable."
)
@click.option("--runner", metavar="CMD", default="", help='Shrink it elsewhere: "ssh HOST", or a command.')
@click.option("--runner-python", metavar="FILE", default="python3", help="Python on HOST.  [default: python3]")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and no list of what it holds.")
def bundle(
    run: Path,
    out: Path | None,
    culprit: int,
    no_weights: bool,
    no_inputs: bool,
    no_twin: bool,
    python: tuple[str, ...],
    runner: str,
    runner_python: str,
    quiet: bool,
) -> ExitCode:
    """Make a bug report of the run in the folder RUN: one folder and one zip, ready to attach.

    Holds ISSUE.md, the smallest .tflite that still fails here with a script that shows it, and the same in PyTorch.
    """
    from bisect_litert.bundles.bundling import Wishes, make_bundle
    from bisect_litert.cli.runtimes import interpreter
    from bisect_litert.record import RunRecord
    from bisect_litert.records.environment import other_runtime

    say = (lambda _: None) if quiet else (lambda line: click.echo(line, err=True))
    pythons = tuple(interpreter(name, quiet=quiet) for name in python)
    # What ran here under another version is shrunk under that version.
    other = "" if runner else other_runtime(RunRecord.load(run))
    here = interpreter(other, quiet=quiet) if other else ""
    wishes = Wishes(
        out, culprit, not no_weights, not no_inputs, not no_twin, runner, runner_python, here, pythons=pythons
    )
    made = make_bundle(run, wishes, say)
    emit(made.summary())
    return ExitCode.OK


@click.command(short_help="Run a bundle's reproduction here: same, fixed or different.")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--python", metavar="VERSION", default=sys.executable, help="With that ai-edge-litert, or that interpreter's."
)
@click.option("-v", "--verbose", is_flag=True, help="What the reproduction prints, too.")
def replay(bundle: Path, python: str, verbose: bool) -> ExitCode:
    """Run the reproduction of a bundle (folder or zip) here: same, fixed, or different.

    Ends as `git bisect run` wants it: 1 same or different, 0 fixed, 125 cannot be tested here.
    """
    from bisect_litert.bundles.replaying import replay as run_again
    from bisect_litert.cli.runtimes import interpreter

    found = run_again(bundle, interpreter(python, quiet=not verbose))
    emit((f"{found.text}\n" if verbose else "") + found.summary())
    return found.exit_code
