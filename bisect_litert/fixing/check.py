"""Holds saved rewrites against the original model once more, from the files alone.

    python -m bisect_litert.fixing.check MODEL FOLDER [--inputs NPZ] [--seed N]

Run in a process of its own, as by a stranger: loads MODEL, imports FOLDER/rewrites.py, applies it, converts the result
anew, runs it on the GPU, and prints a JSON object. Nothing of what the fix held in memory takes part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import CRASHED, Job
from bisect_litert.devices.runners import Runner
from bisect_litert.fixing import rewrites_file
from bisect_litert.fixing.agreement import agreement, truth_of
from bisect_litert.graphs.conversion import convert, input_names
from bisect_litert.measuring.metrics import compare
from bisect_litert.models import model_file
from bisect_litert.models.preparation import LoadedModel


@dataclass(frozen=True, slots=True)
class Check:
    """What the saved files come to."""

    torch32: float
    torch64: float
    output_error: float
    """Largest relative L2 error of a float output on the GPU against the original model in PyTorch; nan when one is not
    finite, or nothing ran."""
    on_gpu: bool
    detail: str = ""
    torch_own: float = nan
    """Where fp64 decided whether torch computes the same: how far the original's fp32 result is from fp64; else nan."""
    torch_off: float = nan
    """How far the changed one's is then."""
    complaint: str = ""
    """What is wrong with torch's own result; empty when nothing is."""

    def right(self, limit: float) -> bool:
        """Whether torch computes the same and every output is in line."""
        return self.on_gpu and not self.complaint and self.output_error <= limit


def check(loaded: LoadedModel, source: str, work: Path, *, time_limit: float = 300.0) -> Check:
    """Applies saved rewrites to a model and runs it.

    Args:
        loaded: The original model.
        source: The text of rewrites.py.
        work: Folder for what is converted.
        time_limit: Seconds the GPU run may take.

    Raises:
        BisectError: The changed model fails in PyTorch or does not convert.
    """
    changed = replace(loaded, module=rewrites_file.apply(source, loaded.module))
    truth = truth_of(loaded)
    torch = agreement(changed, truth)
    path = work / "fixed.tflite"
    graph = convert(changed.module, changed.args, changed.kwargs, path, work / "convert.log")
    inputs = input_names(graph, changed.args, changed.kwargs)
    with Runner(work / "run", time_limit, alone=True) as runner:
        result = runner.run([Job("gpu", path, "gpu", inputs)])["gpu"]
        if result.status == CRASHED:
            result = runner.run([Job("gpu-again", path, "gpu", inputs)])["gpu-again"]
    if not result.ok:
        detail = f"{result.status}: {result.detail}"
        return Check(torch.torch32, torch.torch64, nan, False, detail, torch.own, torch.off, torch.complaint)
    terms = truth.terms
    errors = [
        compare(reference=wanted, target=np.asarray(result.outputs[port.name]), terms=terms.get(label, 0.0))
        for (label, wanted), port in zip(truth.single.items(), graph.outputs, strict=True)
        if graph.tensors[port.tensor].is_float
    ]
    levels = [c.relative_l2 if c.finite_agreement else nan for c in errors]
    error = float(np.max(levels)) if levels else nan
    return Check(torch.torch32, torch.torch64, error, True, "", torch.own, torch.off, torch.complaint)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the check as JSON; nan as null."""
    parser = argparse.ArgumentParser(description="Holds saved rewrites against the original model once more.")
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    loaded = model_file.load(args.model, inputs_path=args.inputs, seed=args.seed)
    source = (args.folder / rewrites_file.NAME).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="bisect-litert-check-") as work:
        found = check(loaded, source, Path(work))
    row = {key: None if isinstance(v, float) and np.isnan(v) else v for key, v in asdict(found).items()}
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
