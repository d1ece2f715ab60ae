"""The command line. A command parses, calls one function, prints; only `main` prints errors and picks exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback
from collections.abc import Sequence

import click

from bisect_litert.cli.blocks import blocks
from bisect_litert.cli.bundle import bundle, replay
from bisect_litert.cli.device import export, ingest
from bisect_litert.cli.doctor import doctor
from bisect_litert.cli.fix import fix
from bisect_litert.cli.group import CONTEXT, PROGRAM, DefaultGroup, show_version
from bisect_litert.cli.matrix import matrix
from bisect_litert.cli.printing import print_error, print_usage_error, silence_stdout
from bisect_litert.cli.reading import diff, report, view
from bisect_litert.cli.run import run
from bisect_litert.errors import BisectError, ExitCode


@click.group(cls=DefaultGroup, context_settings=CONTEXT, no_args_is_help=True)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show the version."
)
def cli() -> None:
    """Name the first block of a PyTorch model whose GPU result in LiteRT goes wrong, and say why.

    MODEL is a Python file that defines model and inputs (or get_model and get_inputs); FILE:NAME and
    package.module:NAME pick another name.
    """


for command in (run, fix, blocks, report, view, diff, bundle, replay, matrix, export, ingest, doctor):
    cli.add_command(command)


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
        print_usage_error(error)
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nStopped.", err=True)
        return ExitCode.CANNOT_TEST
    except BrokenPipeError:
        silence_stdout()
        return ExitCode.OK
    except BisectError as error:
        print_error(error)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        click.echo(f"error: this is a bug of {PROGRAM}; please report it with the traceback above.", err=True)
        return ExitCode.INTERNAL


def run_and_leave() -> int:
    """Does what the command does: `main`, without the second that it takes to take torch and jax apart at the end.

    Returns:
        The exit code.
    """
    gc.set_threshold(50_000, 20, 100)  # they make a million objects that stay: looking through them is for nothing
    codes: list[int] = []
    atexit.register(_leave, codes)  # the first to be registered is the last to be called
    codes.append(main())
    return codes[0]


def _leave(codes: Sequence[int]) -> None:
    if not codes or "torch" not in sys.modules:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter has its own way of saying so
    os._exit(codes[0])
