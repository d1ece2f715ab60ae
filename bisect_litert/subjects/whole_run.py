"""Every tensor of a graph, from one run of the plain CPU kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import Job, JobResult, JobRunner
from bisect_litert.errors import ConversionError, RunnerError
from bisect_litert.graphs.cutting import HAS_SUBGRAPHS, boundary, cut, sinks
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.graphs.ways_around import way_around
from bisect_litert.measuring.evaluation import TAP_MEMORY

_NO_KERNEL = re.compile(r"Didn't find op for builtin opcode '(\w+)'")
_NOT_PREPARED = re.compile(r"(?:^|: )([^:\n]*?)\.? ?Node number \d+ \((\w+)\) failed to prepare")


def run_whole(
    runner: JobRunner,
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    name: str,
    budget: int = TAP_MEMORY,
) -> tuple[dict[int, np.ndarray], JobResult]:
    """Runs a graph and returns every tensor by index, as real numbers, inputs included, and the job it took.

    Args:
        runner: Where it runs.
        graph: The graph.
        inputs: By signature name.
        folder: Where .tflite files go.
        name: What to call the job.
        budget: Bytes of tensors that one job may hold. A graph with more is run in stretches, one after the other,
            each on what those before it gave; plain CPU kernels run op by op, so that changes nothing.

    Raises:
        ConversionError: The graph holds an op that LiteRT has no kernel for.
        RunnerError: It does not run.
    """
    stored = {p.tensor: np.asarray(inputs[p.name]) for p in graph.inputs if p.name in inputs}
    parts = _stretches(graph, budget)
    if len(parts) == 1:
        result = _run(runner, Job(name, graph.on_disk(folder / f"{name}.tflite"), "interpreter", inputs, tensors="all"))
        stored.update(result.tensors)
    else:
        for number, ops in enumerate(parts, 1):
            made = cut(graph, ops, [t for t in boundary(graph, ops) if t in stored], sinks(ops))
            fed = {port: np.asarray(stored[t]) for port, t in made.inputs.items()}
            path = made.graph.write(folder / f"{name}-{number}.tflite")
            result = _run(runner, Job(f"{name}-{number}", path, "interpreter", fed, tensors="all"))
            written = {t for op in ops for t in op.outputs}
            stored.update({t: value for t, value in result.tensors.items() if t in written})
    return {t: graph.tensors[t].real(value) for t, value in stored.items()}, result


def _stretches(graph: Graph, budget: int) -> list[list[Op]]:
    """The ops in file order, parted where what they write would exceed a budget."""
    parts: list[list[Op]] = [[]]
    room = budget
    for op in graph.ops:
        size = sum(4 * graph.tensors[t].size for t in op.outputs)
        if size > room and parts[-1]:
            parts.append([])
            room = budget
        parts[-1].append(op)
        room -= size
    # What an op calls is not cut, nor what lives on from op to op in no tensor.
    whole = any(op.type in HAS_SUBGRAPHS for op in graph.ops) or any(
        t.dtype in ("RESOURCE", "VARIANT") for t in graph.tensors
    )
    return [list(graph.ops)] if whole else parts


def _run(runner: JobRunner, job: Job) -> JobResult:
    result = runner.run([job])[job.id]
    if not result.ok:
        unknown = _NO_KERNEL.search(result.detail)
        if unknown:
            raise ConversionError(
                f"the converted graph holds {unknown.group(1)}, which LiteRT's runtime has no kernel for.",
                hint=way_around(unknown.group(1)) or "Replace the operation that becomes it in the model.",
            )
        refused = _NOT_PREPARED.search(result.detail)
        if refused:
            why, op = refused.groups()
            raise ConversionError(
                f"the converted graph holds {op}, which LiteRT's runtime does not run as it is: {why}.",
                hint=way_around(op) or "Replace the operation that becomes it in the model.",
            )
        raise RunnerError(
            f"LiteRT cannot run the converted graph on the CPU: {result.status}: {result.detail.rstrip('.')}.",
            hint="See logs in the run folder.",
            detail=result.log_text[-2000:],
        )
    return result
