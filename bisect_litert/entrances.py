"""The ways into the main job: `run_bisection` is what the command line calls, `bisect` what Python code calls."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from typing import Any

from bisect_litert.bisection import Bisection
from bisect_litert.devices import machines
from bisect_litert.models import model_file
from bisect_litert.record import RunRecord
from bisect_litert.records import run_folder
from bisect_litert.reports.drawing import Drawer
from bisect_litert.request import BisectRequest, OnProgress, Stage
from bisect_litert.subjects import Subject
from bisect_litert.subjects.opening import of_module, open_subject


def run_bisection(request: BisectRequest, on_progress: OnProgress) -> RunRecord:
    """Does the main job.

    Args:
        request: What to do.
        on_progress: Told of every stage.

    Returns:
        The record, already written to the run folder together with its reports.

    Raises:
        BisectError: The model cannot be tested; exit code 2 or 125.
        Interrupted: Ctrl-C; carries what was found so far, already written.
    """
    machines.check(request)
    run_folder.check(run_folder.plan(request.out, run_folder.label_of(request.model)), request.force)
    return bisect_subject(load_subject(request, on_progress), request, on_progress)


def load_subject(request: BisectRequest, on_progress: OnProgress) -> Subject:
    """Loads what a request names.

    Raises:
        BisectError: It cannot be loaded, or its inputs do not fit.
    """
    with Stage(on_progress, "load model"):
        return open_subject(request)


def bisect_subject(subject: Subject, request: BisectRequest, on_progress: OnProgress) -> RunRecord:
    """Bisects what is loaded already, into `request.out`; raises as `run_bisection` does."""
    drawer = Drawer()  # loads matplotlib on the other core while the model is converted
    try:
        return Bisection(subject, request, on_progress, drawer).run()
    finally:
        drawer.close()


def bisect_loaded(loaded: model_file.LoadedModel, request: BisectRequest) -> RunRecord:
    """Bisects a model that is loaded already, into `request.out`; raises as `run_bisection` does."""
    return Bisection(of_module(loaded, request), request, lambda _: None).run()


def report(record: RunRecord, *, width: int = 100, verbose: bool = False) -> str:
    """Returns what the command line prints of a run.

    Args:
        record: The run.
        width: Columns of a line.
        verbose: One line for every block, however many there are.
    """
    from rich.console import Console

    from bisect_litert.reports import console

    text = StringIO()
    drawn = Console(file=text, width=width, highlight=False, no_color=True, force_jupyter=False)
    console.render(record, drawn, folder=None, verbose=verbose)
    return text.getvalue()


def bisect(
    model: Any,
    inputs: Any,
    *,
    blocks: str | Sequence[str] = (),
    out: Path | str | None = None,
    name: str = "",
    on_progress: OnProgress = lambda _: None,
    **options: Any,
) -> RunRecord:
    """Bisects a PyTorch model from Python; the same job as the command line.

    Args:
        model: A torch.nn.Module.
        inputs: A tensor, a tuple of positional arguments, or a dict of keyword arguments.
        blocks: A glob over module paths, or several.
        out: The run folder; none means that only the record is kept.
        name: How reports call the model; its class name if empty.
        on_progress: Told of every stage.
        **options: Fields of `BisectRequest`, such as seed, tap, time_limit, no_gpu, strict.

    Returns:
        The run record.

    Raises:
        BisectError: The model cannot be tested.
    """
    patterns = (blocks,) if isinstance(blocks, str) else tuple(blocks)
    label = name or type(model).__name__
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bisect-litert-"))) / "run"
        request = BisectRequest(model=label, blocks=patterns, out=Path(out), **options)
        machines.check(request)
        run_folder.check(request.out or Path(), request.force)
        loaded = model_file.prepare(model, inputs, label=label)
        return Bisection(of_module(loaded, request), request, on_progress).run()
