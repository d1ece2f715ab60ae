"""Control runs of a .tflite file: what the tests of counterfactual, splitting and fusion share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bisect_litert.devices.job_queue import JobQueue
from bisect_litert.devices.jobs import Job, JobResult
from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import CPU, GPU, Evaluator, TappedGraph
from bisect_litert.measuring.noise import Held
from bisect_litert.search.counterfactual import Controls


class Deaf(Runner):
    """A runtime without debug switches: it ignores the variables and says nothing of them. Counts jobs that had any."""

    asked = 0

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs the jobs with nothing in the environment."""
        self.asked += sum(bool(job.env) for job in jobs)
        return super().run([replace(job, env={}) for job in jobs], on_done)


@dataclass
class Bench:
    """A graph, and what it takes to run it."""

    graph: Graph
    shipped: TappedGraph
    runner: Runner
    evaluator: Evaluator
    truth: dict[str, np.ndarray]
    values: dict[int, np.ndarray]

    def controls(self, *, switches: bool = True) -> Controls:
        """Control runs that know nothing yet."""
        return Controls(self.evaluator, self.shipped, Held({}, self.truth, {}), self.values, switches=switches)

    def gpu_jobs(self, start: int = 0) -> list[JobResult]:
        """The GPU runs since the evaluator's `start`-th run."""
        return [r for r in self.evaluator.results[start:] if r.id.startswith("gpu")]

    def outputs(self, kind: str = GPU) -> dict[int, np.ndarray]:
        """What the whole graph gives, by tensor."""
        result = self.evaluator.run(self.shipped, [kind], f"-bench{len(self.evaluator.results)}")[kind]
        assert result.ok, result.detail
        return {port.tensor: np.asarray(result.outputs[port.name]) for port in self.graph.outputs}


def bench(runner: Runner, graph: Graph, inputs: Mapping[str, np.ndarray], folder: Path) -> Bench:
    """Takes the plain CPU kernels' values for the right ones."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = {port.name: port.name for port in graph.outputs}
    shapes = {port.name: graph.tensors[port.tensor].shape for port in graph.outputs}
    evaluator = Evaluator(JobQueue(runner), folder, inputs, (), shapes, frozenset(), lambda _: None)
    shipped = TappedGraph(graph, {}, outputs)
    values = evaluator.tensors(graph, "values")
    truth = {port.name: values[port.tensor] for port in graph.outputs}
    return Bench(graph, shipped, runner, evaluator, truth, values)


__all__ = ["CPU", "GPU", "Bench", "Deaf", "bench"]
