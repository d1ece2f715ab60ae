"""`bisect-litert blocks`: what --blocks can select."""

from __future__ import annotations

from pathlib import Path

import click

from bisect_litert.cli.printing import emit, rendered
from bisect_litert.errors import ExitCode, naming


@click.command()
@click.argument("model")
@click.option("--blocks", metavar="GLOB", multiple=True, help="List only these; ** crosses levels. Repeatable.")
@click.option(
    "--inputs", metavar="FILE.npz", type=click.Path(path_type=Path), help="Use these inputs, by name or position."
)
@click.option("--seed", default=0, show_default=True, help="Fixes what is random.")
@click.option("--signature", metavar="NAME", default="", help="Which signature of a .tflite file.")
def blocks(model: str, blocks: tuple[str, ...], inputs: Path | None, seed: int, signature: str) -> ExitCode:
    """List what --blocks can select, without converting."""
    from bisect_litert.reports.block_list import render
    from bisect_litert.request import BisectRequest
    from bisect_litert.subjects.opening import list_blocks

    request = BisectRequest(model=model, blocks=blocks, inputs=inputs, seed=seed, signature=signature)
    with naming(model):
        rows = [row for row in list_blocks(request) if row.selected or not blocks]
    emit(rendered(lambda console: render(rows, console)))
    return ExitCode.OK
