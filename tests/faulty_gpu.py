"""A stand-in for the GPU at the process boundary: the CPU, with faults planted behind chosen tensors of any graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bisect_litert.devices.jobs import CRASHED, TIMED_OUT, Job, JobResult
from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.editor import COPY_SUFFIX, TAP_PREFIX, Editor
from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.graphs.graph import Graph
from bisect_litert.search.counterfactual import END, EXCLUDE

LOG = (Path(__file__).parent / "data" / "whole.log").read_text(encoding="utf-8")
"""What the delegate prints when everything runs on the GPU."""
ADAPTER = "Selected adapter: a GPU of our own, arch=none"


STATUS = {"crash": CRASHED, "hang": TIMED_OUT}
DEATHS = {CRASHED: "signal SIGSEGV", TIMED_OUT: "no result after 300 s"}


@dataclass(frozen=True)
class Fault:
    """A fault behind the tensor that a block's last op writes."""

    block: str
    kind: str
    """"noise", "nan", "zeros", "scale" or "swap" in the graph; "unwritten" (its tap's buffer), "crash", "hang" in the
    runtime."""
    fp32: bool = True
    """Whether the fp32 run has it too."""
    tapped: bool | None = None
    """Whether it is there only while the tensor is an output (True) or only while it is not (False)."""


def tensor_of(graph: Graph, block: str) -> int:
    """The tensor that a block ending in a TANH hands on, also where an output's name took the place of its own."""
    named = [t for t in graph.tensors if re.search(rf"_{block}[;/]", t.name) and t.index in graph.producer]
    last = max(t.index for t in named if not t.name.endswith(COPY_SUFFIX))
    if graph.producer[last].type != "TANH":
        last = next(op.outputs[0] for op in graph.consumers[last] if op.type == "TANH")
    return last


def break_graph(graph: Graph, tensor: int, kind: str) -> Graph:
    """Lets the op that writes a tensor write another one, and a faulty op make the tensor from that."""
    editor = Editor(graph)
    info = graph.tensors[tensor]
    producer = graph.producer[tensor]
    right = editor.add_tensor("right", info.shape, editor.subgraph.tensors[tensor].type)
    op = editor.subgraph.operators[producer.index]
    op.outputs = [right if int(t) == tensor else int(t) for t in op.outputs]
    if kind == "swap":
        order = np.roll(np.arange(info.shape[-1], dtype=np.int32), 1)
        index = editor.add_tensor("order", order.shape, _int32(), order)
        editor.add_op("GATHER", [right, index], [tensor], at=producer.index + 1, axis=len(info.shape) - 1)
        return editor.graph()
    factor = np.ones(info.shape, np.float32)
    if kind == "noise":
        factor += 0.3 * np.random.default_rng(0).standard_normal(info.shape).astype(np.float32)
    elif kind == "nan":
        factor.flat[3] = np.nan
    else:
        factor *= {"zeros": 0.0, "scale": 6.0}[kind]
    constant = editor.add_tensor("factor", info.shape, editor.subgraph.tensors[tensor].type, factor)
    editor.add_op("MUL", [right, constant], [tensor], at=producer.index + 1)
    return editor.graph()


def _int32() -> int:
    from ai_edge_litert import schema_py_generated as schema

    return int(schema.TensorType.INT32)


def _copies(graph: Graph, tensor: int) -> set[int]:
    return {op.outputs[0] for op in graph.consumers.get(tensor, ()) if op.type == "RESHAPE"}


def _is_tapped(graph: Graph, tensor: int) -> bool:
    return any(port.tensor == tensor or port.tensor in _copies(graph, tensor) for port in graph.outputs)


class FaultyGpu(Runner):
    """A runner whose "gpu" rounds to fp16 as an honest one does, and then has the planted faults."""

    faults: Sequence[Fault] = ()
    switches = True
    """Whether it heeds the delegate's debug switches, and says so; a runtime without them ignores them."""
    most_taps = 10**6
    """Taps in one graph from which on it crashes."""

    def run(self, jobs: Sequence[Job], on_done: Callable[[str], None] | None = None) -> dict[str, JobResult]:
        """Runs "gpu" jobs on the CPU."""
        if not self.switches:
            jobs = [replace(job, env={}) for job in jobs]
        said = {job.id: "".join(f"{name} set to {value}\n" for name, value in job.env.items()) for job in jobs}
        on_gpu = {job.id for job in jobs if job.accelerator.startswith("gpu")}
        dead = {job.id: status for job in jobs if job.id in on_gpu and (status := self._death(job))}
        alive = [job for job in jobs if job.id not in dead]
        results = (
            super().run([self._faked(job) if job.id in on_gpu else job for job in alive], on_done) if alive else {}
        )
        results.update({name: JobResult(name, status, DEATHS[status]) for name, status in dead.items()})
        for job in alive:
            if job.id in on_gpu and results[job.id].ok:
                results[job.id] = self._unwritten(job, results[job.id])
        log = f"{ADAPTER}\n{LOG}"
        return {
            name: replace(result, log_text=log + said[name], adapter_line=ADAPTER) if name in on_gpu else result
            for name, result in results.items()
        }

    def _tensor(self, graph: Graph, block: str) -> int:
        """The tensor behind which a block's fault lies, by the name that the whole graph has for it: a part of it may
        hold the tensor and not what tells whose it is."""
        names = self.__dict__.setdefault("_names", {})
        if block not in names:
            names[block] = graph.tensors[tensor_of(graph, block)].name
        return next((t.index for t in graph.tensors if t.name == names[block] and t.index in graph.producer), -1)

    def _active(self, job: Job, kinds: Sequence[str]) -> Iterator[tuple[Fault, Graph, int]]:
        """The faults of some kinds whose op this job has on the GPU."""
        graph = Graph.read(job.model)
        excluded = {int(i) for i in job.env.get(EXCLUDE, "").split(",") if i}
        last = int(job.env.get(END, len(graph.ops)))
        for fault in self.faults:
            tensor = self._tensor(graph, fault.block) if fault.kind in kinds else -1
            made_by = graph.producer.get(tensor)
            if made_by is None or made_by.index in excluded or made_by.index > last:
                continue
            # A tensor that an op on the CPU reads leaves the GPU as well.
            read_by = {op.index for op in graph.consumers.get(tensor, ())}
            seen = _is_tapped(graph, tensor) or bool(read_by & excluded) or max(read_by, default=0) > last
            if fault.tapped is None or fault.tapped is seen:
                yield fault, graph, tensor

    def _death(self, job: Job) -> str:
        if sum(port.name.startswith(TAP_PREFIX) for port in Graph.read(job.model).outputs) > self.most_taps:
            return CRASHED
        return next((STATUS[fault.kind] for fault, _, _ in self._active(job, ("crash", "hang"))), "")

    def _unwritten(self, job: Job, result: JobResult) -> JobResult:
        for _, graph, tensor in self._active(job, ("unwritten",)):
            for port in graph.outputs:
                if port.tensor == tensor or port.tensor in _copies(graph, tensor):
                    empty = np.full(result.outputs[port.name].shape, np.nan, np.float32)
                    result = replace(
                        result,
                        outputs={**result.outputs, port.name: empty},
                        unwritten={**result.unwritten, port.name: empty.size},
                    )
        return result

    def _faked(self, job: Job) -> Job:
        graph = Graph.read(job.model)
        for fault, _, tensor in self._active(job, ("noise", "nan", "zeros", "scale", "swap")):
            if fault.fp32 or not job.fp32:
                graph = break_graph(graph, tensor, fault.kind)
        if not job.fp32:
            graph = emulate(graph, Rounding.HALF)
        path = job.model.with_name(f"fake-{job.id}-{job.model.name}")
        return replace(job, model=graph.write(path), accelerator="cpu", fp32=False, env={})
