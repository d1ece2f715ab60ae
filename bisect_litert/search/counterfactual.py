"""The strongest evidence: keep the culprit off the GPU and see whether the model comes right.

The delegate's own switches do it without touching the file: LITERT_GPU_DEBUG_EXCLUDE_NODES keeps ops on the CPU, and
LITERT_GPU_DEBUG_END_NODE=N puts ops 0 to N on the GPU and the rest on the CPU. Both act on the graph as it ships,
taps or not. A runtime that has no such switch ignores it without a word. So what a switch does is looked at, and where
it does nothing the graph is split instead (splitting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bisect_litert.block_record import Comparison
from bisect_litert.devices import placement, residency
from bisect_litert.devices.jobs import CRASHED, TIMED_OUT, JobResult
from bisect_litert.graphs.graph import Op
from bisect_litert.graphs.splitting import PartFailed, Parts
from bisect_litert.measuring.evaluation import GPU, GPU_FP32, Evaluator, TappedGraph
from bisect_litert.measuring.metrics import compare_by_scale, compare_output, out_of_line
from bisect_litert.measuring.readings import Forward

EXCLUDE = "LITERT_GPU_DEBUG_EXCLUDE_NODES"
END = "LITERT_GPU_DEBUG_END_NODE"


@dataclass(frozen=True, slots=True)
class Control:
    """What one control run showed."""

    outputs: Mapping[str, Comparison]
    """The model's outputs against torch; only the float ones where the graph was split."""
    ok: bool
    detail: str = ""
    died: bool = False
    """Whether the runtime crashed or ran out of time."""
    split: bool = False
    """Whether the graph was split, since the runtime has no switch."""
    invalid: str = ""
    """The GPU's first complaint about the commands it was given; what such a run returns is worthless. Empty when it
    had none, or the graph was split."""
    there: Comparison | None = None
    """Where it was split, the GPU's tensor against the right one; None when nobody looked."""

    def right(self, limit: float) -> bool:
        """Whether every output is in line."""
        return self.ok and bool(self.outputs) and not any(out_of_line(c, limit) for c in self.outputs.values())

    def wrong(self, limit: float) -> bool | None:
        """Whether the fault is there; None when that could not be told.

        A tensor in line that puts an output off is what an amplifier makes of rounding; one that is out of line and
        does not, as in a norm whose rows are centred, is no fault.
        """
        if not self.ok:
            return None
        return not self.right(limit) and (self.there is None or out_of_line(self.there, limit))

    @property
    def worst(self) -> float:
        """Largest relative L2 error of an output; nan when one is not finite or nothing ran."""
        levels = [c.relative_l2 if c.finite_agreement else float("nan") for c in self.outputs.values()]
        return float(np.max(levels)) if levels else float("nan")


class Controls:
    """Control runs of one graph.

    Args:
        evaluator: Runs graphs.
        graph: The graph as it ships.
        truth: Torch's forward.
        values: The right value of every tensor, in the graph's layout.
        switches: Whether the delegate's switches may be used where it has them.
        known: A GPU run of that graph that was made already.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        graph: TappedGraph,
        truth: Forward,
        values: Mapping[int, np.ndarray],
        *,
        switches: bool = True,
        known: JobResult | None = None,
    ) -> None:
        self._evaluator, self._graph, self._truth, self._values = evaluator, graph, truth, values
        self._parts = Parts(evaluator, graph.graph)
        self._ports = {port.name: port.tensor for port in graph.graph.outputs}
        self._acting: dict[str, bool] = {} if switches else {EXCLUDE: False, END: False}
        self._results: dict[tuple[str, str, bool], JobResult] = {}
        if known is not None and known.ok:
            self._results["", "", False] = known
        self._seen: dict[tuple[object, ...], Control] = {}

    # -- what can be asked ---------------------------------------------------------------------------------------------

    def without(self, ops: Sequence[int]) -> Control:
        """Runs with these ops on the CPU and the others on the GPU."""
        listed = ",".join(map(str, sorted(ops)))
        if not listed:
            return self._whole("", "")
        if self._acts(EXCLUDE, listed):
            return self._whole(EXCLUDE, listed)
        return self._split(("without", listed), lambda: self._parts.compute(self._ends, ops, self._settled()))

    def apart(self, ops: Sequence[int]) -> Control | None:
        """Runs with the cuts that `without` makes and all on the GPU; None when `without` makes none.

        Right as well, it is the cut that cures the fault, and so not these ops alone.
        """
        listed = ",".join(map(str, sorted(ops)))
        if not listed or self._acts(EXCLUDE, listed):
            return None
        return self._split(("apart", listed), lambda: self._parts.compute(self._ends, ops, self._settled(), apart=True))

    def up_to(self, op: int, *, fp32: bool = False) -> Control:
        """Runs with the ops up to and including this one on the GPU and the rest on the CPU.

        Where the graph has to be split for it, only what the op needs is on the GPU, in a graph that has the op's
        result for its only output.
        """
        if self._acts(END, str(op)):
            return self._whole(END, str(op), fp32)
        tensor = self._result_of(self._graph.graph.ops[op])

        def run() -> dict[int, np.ndarray]:
            made = self._parts.compute([tensor], (), self._settled(), fp32=fp32)
            return self._parts.finish(made, self._ends)

        return self._split(("up to", op, fp32), run, tensor)

    def first(
        self, ops: Sequence[Op], bad: Callable[[Control], bool | None], stations: Iterable[int] = ()
    ) -> int | None:
        """Finds the op with which a fault comes, in a number of runs logarithmic in how many ops there are.

        Args:
            ops: Where to look, in file order.
            bad: Whether the fault is there; None when that could not be told.
            stations: Tensors to look at before others, such as the ends of blocks.

        Returns:
            The op's index; None when the fault could not be seen.
        """
        if not ops:
            return None
        if self._acts(END, str(ops[(len(ops) - 1) // 2].index)):
            found = first_wrong(len(ops) - 1, lambda i: bad(self.up_to(ops[i].index)))
            return None if found is None else ops[found].index
        mine = {op.index for op in ops}
        by = {t: op.index for t, op in self._graph.graph.producer.items() if op.index in mine}
        reads = {op.index: [by[t] for t in op.inputs if t in by] for op in ops}
        read = {i for own in reads.values() for i in own}
        ends = [op.index for op in ops if op.index not in read or set(op.outputs) & set(self._ends)]
        last = next((i for i in ends if bad(self.up_to(i))), None)
        if last is None:
            return None
        first = frozenset(by[t] for t in stations if t in by)
        return first_upstream(last, reads, lambda i: bad(self.up_to(i)), first)

    # -- runs ----------------------------------------------------------------------------------------------------------

    @property
    def _ends(self) -> list[int]:
        """The model's float outputs."""
        tensors = self._graph.graph.tensors
        wanted = dict.fromkeys(self._ports[name] for name in self._graph.outputs.values())
        return [t for t in wanted if tensors[t].is_float]

    def _result_of(self, op: Op) -> int:
        tensors = self._graph.graph.tensors
        return next((t for t in op.outputs if tensors[t].is_float), op.outputs[0])

    def _whole(self, switch: str, value: str, fp32: bool = False) -> Control:
        key = (switch, value, fp32)
        if key not in self._seen:
            result = self._run(switch, value, fp32)
            outputs = self._evaluator.values(result, self._graph).outputs if result.ok else {}
            self._seen[key] = self._control(outputs, result)
        return self._seen[key]

    def _run(self, switch: str, value: str, fp32: bool = False) -> JobResult:
        key = (switch, value, fp32)
        if key not in self._results:
            kind = GPU_FP32 if fp32 else GPU
            env = {switch: value} if switch else MappingProxyType({})
            name = f"-control{len(self._results) + 1}"
            self._results[key] = self._evaluator.run(self._graph, [kind], name, env=env)[kind]
        return self._results[key]

    def _split(self, key: tuple[object, ...], run: Callable[[], Mapping[int, np.ndarray]], cut_at: int = -1) -> Control:
        if key not in self._seen:
            try:
                found = run()
            except PartFailed as error:
                self._seen[key] = self._control({}, error.result, split=True)
            else:
                outputs = {k: found[self._ports[n]] for k, n in self._graph.outputs.items() if self._ports[n] in found}
                there = None
                if cut_at in self._values and cut_at in found and found[cut_at].dtype.kind == "f":
                    there = compare_by_scale(reference=self._values[cut_at], target=found[cut_at])
                self._seen[key] = self._control(outputs, None, split=True, there=there)
        return self._seen[key]

    def _control(
        self,
        outputs: Mapping[str, np.ndarray],
        result: JobResult | None,
        *,
        split: bool = False,
        there: Comparison | None = None,
    ) -> Control:
        said = placement.read(result.log_text, 0).validation_errors if result else ()
        return Control(
            {
                k: compare_output(reference=self._truth.outputs[k], target=v, terms=self._truth.terms.get(k, 0.0))
                for k, v in outputs.items()
            },
            result is None or result.ok,
            result.detail if result else "",
            result is not None and result.status in (CRASHED, TIMED_OUT),
            split,
            said[0] if said else "",
            there,
        )

    # -- what the runtime can do ---------------------------------------------------------------------------------------

    def _acts(self, switch: str, value: str) -> bool:
        """Whether the runtime heeds a switch: it says so in its log, or the outputs come out differently."""
        if switch not in self._acting:
            every = ",".join(str(op.index) for op in self._graph.graph.ops)
            self._acting[switch] = placement.heeds(self._run(switch, value).log_text, switch) or self._differs(
                self._run(switch, every if switch == EXCLUDE else "0")
            )
        return self._acting[switch]

    def _differs(self, result: JobResult) -> bool:
        """Whether a run with nearly nothing on the GPU gave anything else than the model as it ships."""
        shipped = self._run("", "")
        if not result.ok or not shipped.ok:
            return result.ok and not shipped.ok
        return any(
            np.asarray(v).tobytes() != np.asarray(shipped.outputs[k]).tobytes() for k, v in result.outputs.items()
        )

    def _settled(self) -> frozenset[int]:
        """Ops that run on the CPU as the model ships; a cut alone may bring them to the GPU, or others off it."""
        graph, shipped = self._graph.graph, self._run("", "")
        findings = placement.read(shipped.log_text, len(graph.ops), shipped.adapter_line)
        refused, _ = residency.refused_ops(graph, findings)
        gpu = residency.on_gpu(graph, findings, refused) if shipped.ok else None
        return frozenset() if gpu is None else frozenset(op.index for op in graph.ops) - gpu


def first_wrong(last: int, wrong: Callable[[int], bool | None]) -> int | None:
    """Finds the smallest N for which `wrong(N)` holds, given that it holds for `last`, by halving.

    Args:
        last: An op index known to be wrong.
        wrong: Whether the model is wrong with ops 0..N on the GPU; None when that could not be told, which counts as
            wrong so that the search goes on to smaller N and never names an op it has not seen right before.

    Returns:
        The op index, or None when nothing could be told at all.
    """
    low, high, told = -1, last, False
    while high - low > 1:
        middle = (low + high) // 2
        answer = wrong(middle)
        told = told or answer is not None
        if answer is False:
            low = middle
        else:
            high = middle
    return high if told or last == 0 else None


def first_upstream(
    last: int,
    reads: Mapping[int, Sequence[int]],
    wrong: Callable[[int], bool | None],
    stations: frozenset[int] = frozenset(),
) -> int:
    """Finds an op that is wrong while nothing it reads is, by halving what lies upstream of one that is wrong.

    Args:
        last: An op known to be wrong.
        reads: The ops that each op reads from; keys in file order.
        wrong: Whether an op's result is wrong; None when that could not be told, which counts as wrong.
        stations: Ops to ask about before others.
    """
    upstream: dict[int, int] = {}
    """Sets of ops, as bits."""
    for op, own in reads.items():
        upstream[op] = 0
        for p in own:
            upstream[op] |= upstream[p] | 1 << p
    left = upstream[last]
    while left:
        listed = [op for op in reads if left >> op & 1]
        asked = [op for op in listed if op in stations] or listed

        def parts(op: int, left: int = left) -> tuple[int, int]:
            """How evenly an op parts what is left: into what it follows from and the rest."""
            behind = (upstream[op] & left).bit_count()
            return min(behind + 1, left.bit_count() - behind), op

        middle = max(asked, key=parts)
        if wrong(middle) is False:
            left &= ~(upstream[middle] | 1 << middle)
        else:
            last, left = middle, left & upstream[middle]
    return last
