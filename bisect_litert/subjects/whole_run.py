"""Every tensor of a graph, from one run of the plain CPU kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bisect_litert.errors import ConversionError, RunnerError
from bisect_litert.graph import Graph
from bisect_litert.jobs import Job, JobResult, JobRunner

_NO_KERNEL = re.compile(r"Didn't find op for builtin opcode '(\w+)'")


def run_whole(
    runner: JobRunner, graph: Graph, inputs: Mapping[str, np.ndarray], folder: Path, name: str
) -> tuple[dict[int, np.ndarray], JobResult]:
    """Runs a graph and returns every tensor by index, as real numbers, inputs included, and the job it took.

    Raises:
        ConversionError: The graph holds an op that LiteRT has no kernel for.
        RunnerError: It does not run.
    """
    path = graph.on_disk(folder / f"{name}.tflite")
    result = runner.run([Job(name, path, "interpreter", inputs, tensors="all")])[name]
    if not result.ok:
        unknown = _NO_KERNEL.search(result.detail)
        if unknown:
            raise ConversionError(
                f"the converted graph holds {unknown.group(1)}, which LiteRT's runtime has no kernel for.",
                hint="Replace the operation that becomes it in the model.",
            )
        raise RunnerError(
            f"LiteRT cannot run the converted graph on the CPU: {result.status}: {result.detail.rstrip('.')}.",
            hint="See logs in the run folder.",
            detail=result.log_text[-2000:],
        )
    given = {p.tensor: np.asarray(inputs[p.name]) for p in graph.inputs if p.name in inputs}
    return {t: graph.tensors[t].real(value) for t, value in {**given, **result.tensors}.items()}, result
