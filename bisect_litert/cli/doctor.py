"""`bisect-litert doctor`: whether everything is there and works."""

from __future__ import annotations

import click

from bisect_litert.cli.printing import emit, rendered
from bisect_litert.errors import ExitCode


@click.command(short_help="Check what is installed, and test the GPU.")
@click.option("--quick", is_flag=True, help="Leave out what runs on a GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead.")
def doctor(quick: bool, as_json: bool) -> ExitCode:
    """Check what is installed, which GPU each runtime sees, and test itself; says how to put right what is wrong.

    Ends with 0 if all is fine, with 1 if something is wrong.
    """
    from bisect_litert.doctor import examine
    from bisect_litert.reports.checkup import render_check, render_end

    if as_json:
        found = examine(quick=quick)
        emit(found.to_json())
    else:
        found = examine(lambda check: emit(rendered(lambda console: render_check(check, console))), quick=quick)
        emit("\n" + rendered(lambda console: render_end(found, console)))
    return ExitCode.OK if found.fine else ExitCode.DIVERGED
