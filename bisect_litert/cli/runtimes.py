"""`--runtime`: the main job under one or several versions of ai-edge-litert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bisect_litert.cli.printing import emit, progress, rendered
from bisect_litert.errors import ExitCode, naming
from bisect_litert.request import BisectRequest
from bisect_litert.versions.runtimes import Runtime


def resolve_all(asked: Sequence[str], *, quiet: bool) -> list[Runtime]:
    """Returns the runtimes asked for, each once, made now if need be."""
    from bisect_litert.versions.runtimes import resolve

    say = (lambda _: None) if quiet else (lambda line: click.echo(line, err=True))
    return list({runtime.python: runtime for runtime in (resolve(name, say) for name in asked)}.values())


def interpreter(asked: str, *, quiet: bool) -> str:
    """Returns the interpreter for a version, made now if need be; what is no version is one already."""
    from bisect_litert.versions.runtimes import is_version, resolve

    say = (lambda _: None) if quiet else (lambda line: click.echo(line, err=True))
    return resolve(asked, say).python if is_version(asked) else asked


def survey(
    request: BisectRequest, runtimes: Sequence[Runtime], *, as_json: bool, quiet: bool, verbose: bool
) -> ExitCode:
    """Runs the main job under each and prints one table."""
    from bisect_litert.reports import runtime_table
    from bisect_litert.request import Interrupted

    folder = request.out or Path()
    with naming(request.model), progress(quiet=quiet, verbose=verbose) as on_progress:
        from bisect_litert.versions.surveying import run_survey, survey_exit_code

        try:
            found = run_survey(request, runtimes, on_progress)
        except Interrupted:
            click.echo(f"Stopped. {folder}/ keeps what was computed.", err=True)
            return ExitCode.CANNOT_TEST
    emit(found.to_json() if as_json else rendered(lambda console: runtime_table.render(found, console, folder=folder)))
    return survey_exit_code(found)
