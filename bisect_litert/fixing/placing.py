"""Where no rewrite was proved: the culprits' ops kept off the GPU, which is a way to run the model and no cure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import Job, JobRunner
from bisect_litert.fixing.agreement import Truth
from bisect_litert.fixing.costing import Timing, seconds
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare
from bisect_litert.record import Culprit
from bisect_litert.records.fix_record import KeptOff
from bisect_litert.search.counterfactual import EXCLUDE


def keep_off(
    culprits: Sequence[Culprit],
    graph: Graph,
    path: Path,
    inputs: Mapping[str, np.ndarray],
    truth: Truth,
    limit: float,
    runner: JobRunner,
    *,
    time_here: bool,
) -> KeptOff | None:
    """Runs the model with what is left of its faults on the CPU: first the guilty ops alone, then their whole blocks.

    Args:
        culprits: Those that are left, with the ops that were found in them.
        graph: The converted model that they were found in.
        path: Its file.
        inputs: By signature name.
        truth: Torch's outputs.
        limit: Largest relative L2 error of an output that is right.
        runner: Runs the control.
        time_here: Whether this machine's GPU is the one, so that its time can be taken.

    Returns:
        The smaller placement that comes right, else the larger one; None when no op is known.
    """
    found = None
    for number, (ops, what) in enumerate(_choices(culprits)):
        env = {EXCLUDE: ",".join(map(str, ops))}
        name = f"kept-off-{number}"
        result = runner.run([Job(name, path, "gpu+cpu", inputs, env=env)])[name]
        error = nan
        if result.ok:
            pairs, terms = zip(truth.single.items(), graph.outputs, strict=True), truth.terms
            parts = [
                compare(reference=wanted, target=np.asarray(result.outputs[port.name]), terms=terms.get(label, 0.0))
                for (label, wanted), port in pairs
                if graph.tensors[port.tensor].is_float
            ]
            error = float(np.max([c.relative_l2 if c.finite_agreement else nan for c in parts])) if parts else nan
        right = bool(error <= limit)
        found = KeptOff(ops, right, error, nan, f"{EXCLUDE}={env[EXCLUDE]} keeps {what} on the CPU")
        if right and time_here:
            runs = {"all": Timing(path, "gpu", {}), "off": Timing(path, "gpu+cpu", env)}
            took = seconds(runs, inputs, path.parent / "kept-off")
            if {"all", "off"} <= took.keys():
                found = KeptOff(ops, right, error, took["off"] / took["all"], found.how)
        if right:
            break
    return found


def _choices(culprits: Sequence[Culprit]) -> Iterator[tuple[tuple[int, ...], str]]:
    guilty: set[int] = set()
    blocks: set[int] = set()
    for culprit in culprits:
        span = range(culprit.region[0], culprit.region[-1] + 1) if culprit.region else [culprit.op]
        guilty.update(op for op in span if op >= 0)
        blocks.update(op.index for op in culprit.ops)
    if guilty:
        yield tuple(sorted(guilty)), "the guilty ops"
    if blocks - guilty:
        yield tuple(sorted(blocks | guilty)), "the culprit's block" if len(culprits) == 1 else "the culprits' blocks"
