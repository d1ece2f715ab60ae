"""Options of the main job that would have no part in what is asked for: refused before any work, never ignored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.core import ParameterSource

_WITH_PREDICT = {
    "model",
    "blocks",
    "inputs",
    "seed",
    "out",
    "force",
    "no_gpu",
    "predict",
    "as_json",
    "quiet",
    "verbose",
}
"""What --predict heeds, and --no-gpu, which it fulfils."""


def refuse_unused(context: click.Context) -> None:
    """Refuses combinations of options of which one would be ignored.

    Raises:
        click.UsageError: Names the option, and why it has nothing to do.
    """
    values = context.params
    given = [
        p for p in context.command.params if context.get_parameter_source(p.name or "") is ParameterSource.COMMANDLINE
    ]
    unheeded = [p.opts[0] for p in given if p.name not in _WITH_PREDICT]
    if values["predict"] and unheeded:
        raise click.UsageError(
            f"--predict stops after PyTorch: {_has(unheeded)} no part in it. Leave one or the other out."
        )
    if values["runtime"]:
        _refuse_with_runtime(values)
    if values["then_fix"]:
        _refuse_with_fix(values)
    if any(p.name == "runner_python" for p in given) and not values["runner"]:
        raise click.UsageError(
            '--runner-python names the Python that --runner "ssh HOST" uses, and there is no --runner.'
        )


def _refuse_with_runtime(values: dict[str, object]) -> None:
    if values["no_gpu"]:
        raise click.UsageError("--runtime is for GPU runs, and --no-gpu leaves none. Leave one of them out.")
    if values["runner"]:
        raise click.UsageError("--runtime runs the GPU here, and --runner elsewhere. Leave one of them out.")
    several = len(set(values["runtime"])) > 1  # type: ignore[call-overload]
    one_run = [option for name, option in (("then_view", "--view"), ("then_fix", "--fix")) if values[name]]
    if several and one_run:
        raise click.UsageError(f"Several --runtime make several runs, and {_has(one_run, 'take', 'takes')} one.")


def _refuse_with_fix(values: dict[str, object]) -> None:
    if values["as_json"]:
        raise click.UsageError("--json prints one record. Run without --fix, then: bisect-litert fix RUN --json")
    if values["tflite"] is not None:
        raise click.UsageError(
            "--fix rewrites the model and converts it anew, and --tflite tests a file that is converted already."
            " Bisect the model without --tflite to fix it."
        )
    if Path(str(values["model"])).suffix == ".tflite":
        raise click.UsageError(
            "--fix rewrites PyTorch code, and a .tflite file has none. Bisect the model it was made of."
        )


def _has(options: Iterable[str], several: str = "have", one: str = "has") -> str:
    """Returns "--fp32 has", "--fp32 and --tap have"."""
    *rest, last = options
    return f"{', '.join(rest)} and {last} {several}" if rest else f"{last} {one}"
