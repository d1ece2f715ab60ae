"""The group of commands: what follows the program's name is a model unless it is a command."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

PROGRAM = "bisect-litert"
DEFAULT_COMMAND = "run"
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class DefaultGroup(click.Group):
    """A group whose first word is a model unless it is a command: `model.py` is `run model.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the default command in front of a model."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            _refuse_typo(ctx, args[0], list(self.commands))
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes both forms: a model alone, and a command."""
        formatter.write_usage(PROGRAM, "MODEL [OPTIONS]")
        formatter.write_usage(PROGRAM, "COMMAND [ARGS]...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the main job's options first: they are what --help is asked for."""
        run = self.commands[DEFAULT_COMMAND]
        params = [param for param in run.params if isinstance(param, click.Option)]
        rows = [row for param in params if (row := param.get_help_record(ctx))]
        own = [row for param in self.get_params(ctx) if (row := param.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl([*rows, *own])
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_text("0 no divergence, 1 divergence, 2 usage, 125 could not test, 255 our bug")


def _refuse_typo(ctx: click.Context, word: str, commands: list[str]) -> None:
    if word.isalpha() and not Path(word).exists():
        near = get_close_matches(word, commands, n=1, cutoff=0.7)
        if near:
            raise click.UsageError(f"{word!r} is no command and no model file. Did you mean {near[0]!r}?", ctx)


def show_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Prints the version and ends."""
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"{PROGRAM} {version(PROGRAM)}")
        except PackageNotFoundError:
            click.echo(f"{PROGRAM} (not installed)")
        ctx.exit()
