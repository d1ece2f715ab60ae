"""What commands print: answers on stdout, progress and errors on stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bisect_litert.errors import BisectError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from bisect_litert.record import RunRecord
    from bisect_litert.reports.progress import ProgressDrawer

FORMATS = ("text", "md", "json", "junit", "sarif", "csv")


def print_error(error: BisectError) -> None:
    """Prints what happened, what to do next, and the detail, on stderr."""
    click.echo(click.style("error:", fg="red", bold=True) + f" {error.message}", err=True)
    if error.hint:
        click.echo(error.hint, err=True)
    if error.detail:
        click.echo(f"\n{error.detail.rstrip()}", err=True)


def print_usage_error(error: click.ClickException) -> None:
    """Prints what is wrong with the command line as every other error; the help where nothing was given."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    hint = ""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        hint = f"Usage and options: {context.command_path} --help"
    print_error(UsageError(error.format_message(), hint=hint))


def print_record(record: RunRecord, form: str, folder: Path | None, verbose: bool, model: str = "") -> None:
    """Prints a record on stdout, in one of `FORMATS`."""
    from bisect_litert.reports.outcome import PREDICTED

    if form == "json":
        emit(record.to_json())
    elif form in ("junit", "sarif", "csv"):
        from bisect_litert.reports import accuracy_csv, junit, sarif

        emit({"junit": junit, "sarif": sarif, "csv": accuracy_csv}[form].render(record))
    elif record.target == PREDICTED:
        from bisect_litert.reports import prediction

        if form == "md":
            emit(prediction.markdown(record))
        else:
            emit(rendered(lambda console: prediction.render(record, console, verbose=verbose)))
    elif form == "md":
        from bisect_litert.reports import markdown

        emit(markdown.render(record))
    else:
        from bisect_litert.reports import console as text

        emit(rendered(lambda console: text.render(record, console, folder=folder, model=model, verbose=verbose)))


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


@contextmanager
def progress(*, quiet: bool, verbose: bool) -> Iterator[ProgressDrawer]:
    """Draws progress on stderr; what it yields is to be told of each step."""
    from bisect_litert.reports.progress import ProgressDrawer

    with _progress_console() as console, ProgressDrawer(console, quiet=quiet, verbose=verbose) as drawer:
        yield drawer


@contextmanager
def _progress_console() -> Iterator[Console]:
    """A console on stderr, on a descriptor of its own: while the converter runs, its log takes the place of stderr."""
    from rich.console import Console

    if not sys.stderr.isatty():
        yield Console(stderr=True, highlight=False)
        return
    with open(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors="replace") as terminal:
        yield Console(file=terminal, highlight=False)


def emit(text: str) -> None:
    """Writes an answer to stdout."""
    with _stdout():
        sys.stdout.write(text)
        sys.stdout.flush()


def rendered(draw: Callable[[Console], None]) -> str:
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
        silence_stdout()
        if error.errno != errno.EPIPE:
            message = f"The answer cannot be written to stdout: {error.strerror}."
            raise UsageError(message, hint="Redirect it elsewhere.") from None


def silence_stdout() -> None:
    """Lets nothing more reach stdout, which is gone."""
    # The interpreter flushes stdout once more on its way out, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
