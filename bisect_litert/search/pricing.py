"""Inside a culprit: every op priced at the target's own operands, by one CPU run in which no op sees another's result.

All ops of the block are tapped in the file, the target runs once more, and a CPU graph is made in which each op reads
the target's tensors as graph inputs. What the CPU makes of an op's own operands against what the target made of them
is that op's doing alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np

from bisect_litert.block_record import Comparison
from bisect_litert.devices.jobs import JobResult
from bisect_litert.graphs.cutting import cut
from bisect_litert.graphs.dequantised import with_real_weights
from bisect_litert.graphs.editor import FEED_PREFIX, with_taps
from bisect_litert.graphs.emulation import Rounding, allowance, emulate, round_array
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import CPU, GPU, GPU_FP32, TappedGraph
from bisect_litert.measuring.metrics import FP16_UNIT, compare_by_scale, out_of_line
from bisect_litert.search.blame import Investigation
from bisect_litert.search.culprits import Reading, faulty, limit
from bisect_litert.search.digits import where_lost
from bisect_litert.search.ranges import accumulated_of, swallowed
from bisect_litert.vocabulary import Cause

MAX_OPS = 1024
"""Blocks with more ops are not looked into at once: so many taps were seen to run together on a GPU."""
MAX_CONTRIBUTIONS = 64


@dataclass(frozen=True, slots=True)
class Scene:
    """A culprit where it was found: the graph of that round, what it showed, and why."""

    block: str
    cause: Cause
    kind: str
    reading: Reading
    graph: TappedGraph


@dataclass(frozen=True, slots=True)
class OpPrice:
    """What was measured of one op."""

    op: Op
    local: Comparison | None
    peak: float
    accumulated: float
    contribution: float
    wrong: bool


@dataclass(frozen=True, slots=True)
class Priced:
    """What was measured inside a block."""

    ops: tuple[OpPrice, ...]
    guilty: int = -1
    """Index of the op to blame, -1 when none stands out."""
    persists: bool = True
    """Whether the block is still wrong when its ops are tapped."""
    readable: bool = True
    """Whether its outputs came back at all when its ops were tapped."""
    evidence: tuple[str, ...] = ()
    told: str = ""
    """What to say of the guilty op, where it is not that it is wrong at its own operands."""
    jobs: tuple[JobResult, ...] = field(default=())


class Pricer:
    """Prices the ops of blocks.

    Args:
        case: What there is to work with.
    """

    def __init__(self, case: Investigation) -> None:
        self.case = case
        self._walls = {t.tensor for t in case.taps if t.tensor >= 0}
        self._exact = with_real_weights(case.original)
        self._count = 0

    def ops_of(self, block: str) -> tuple[Op, ...]:
        """The ops between a block's inputs and its outputs."""
        return self.case.original.inside(self._ends(block), self._walls)

    def _ends(self, block: str) -> list[int]:
        case = self.case
        own = [t.tensor for t in case.taps if t.block == block and t.tensor >= 0]
        at = {port.name: port.tensor for port in case.original.outputs}
        own += [at[name] for label, name in case.base.outputs.items() if case.owners.get(label) == block]
        return list(dict.fromkeys(own))

    def price(self, scene: Scene) -> Priced | None:
        """Prices a culprit's ops on the target; None when the block has too many, or nothing could be run."""
        ops = self.ops_of(scene.block)
        if not ops or len(ops) > MAX_OPS:
            return None
        self._count += 1
        readable = False
        for copies in (True, False):
            seen, jobs = self._target_values(scene, ops, copies)
            if seen is None:
                continue
            forced, chained, more = self._cpu_values(ops, seen, self._ends(scene.block))
            jobs += more
            if forced is None:
                return None
            ends = [t for t in self._ends(scene.block) if t in seen and t in chained]
            readable = readable or bool(ends)
            shown = self._shown(scene)
            still = any(out_of_line(compare_by_scale(reference=chained[t], target=seen[t]), shown) for t in ends)
            if still or scene.cause is Cause.PRECISION_LOSS:
                ends = [t for t in self._ends(scene.block) if t in chained]
                return self._judge(scene, ops, seen, forced, chained, ends, jobs)
        return Priced(self._plain(ops), persists=False, readable=readable)

    def _controlled(self, scene: Scene) -> bool:
        """Whether a block is looked into on the GPU in fp32: a wrong kernel shows there as well, and nothing else."""
        return scene.cause is Cause.WRONG_KERNEL and self.case.target == GPU and scene.reading.fp32_ran

    def _shown(self, scene: Scene) -> float:
        """Relative L2 error from which a block shows its fault: the limit, or half of what it showed where a skip path
        keeps it below that."""
        reading = scene.reading
        seen = reading.fp32 if self._controlled(scene) else reading.local
        level = seen.relative_l2 if seen is not None and seen.finite_agreement else inf
        allowed = limit(reading, self.case.settings)
        return allowed if out_of_line(seen, allowed) else level / 2

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _target_values(
        self, scene: Scene, ops: Sequence[Op], copies: bool
    ) -> tuple[dict[int, np.ndarray] | None, list[JobResult]]:
        """The target's own tensors around and inside the block, by index, in the graph's layout."""
        case, graph = self.case, scene.graph
        wanted = self._floats(t for op in ops for t in (*op.inputs, *op.outputs))
        produced = set(graph.graph.producer)
        missing = [t for t in wanted if t not in graph.names and t in produced]
        tapped, names = with_taps(graph.graph, missing, copies=copies)
        both = TappedGraph(tapped, {**graph.names, **names}, graph.outputs, graph.feeds)
        control = self._controlled(scene)
        exact = control or case.settings.fp32
        kind = GPU_FP32 if control else case.target
        result = case.evaluator.run(both, [kind], f"-ops{self._count}{'' if copies else '-raw'}")[kind]
        if not result.ok:
            return None, [result]
        tensors = case.original.tensors
        found = {
            t: tensors[t].real(np.asarray(result.outputs[n]))
            for t, n in both.names.items()
            if t in wanted and n in result.outputs
        }
        # What no op of this graph writes is given to it: the model's inputs and healed tensors, rounded to fp16's
        # digits. Where one does not fit into its range, that is the fault of the op that reads it on the target.
        fed = {t: value for n, value in graph.feeds.items() for t in wanted if n == f"{FEED_PREFIX}{t:05d}"}
        made = {t for op in ops for t in op.outputs}
        given = {t: case.values[t] for t in wanted if t not in found and t in case.values}
        given.update({t: value for t, value in fed.items() if t not in made})
        for t, value in given.items():
            exactly = np.asarray(tensors[t].real(np.asarray(value)), np.float32)
            found[t] = exactly if exact else round_array(exactly, Rounding.SIGNIFICAND)
        found = {t: v for t, v in found.items() if not result.unwritten.get(both.names.get(t, ""))}
        return {t: v.reshape(case.original.tensors[t].shape) for t, v in found.items()}, [result]

    def _floats(self, tensors: Iterable[int]) -> list[int]:
        graph = self.case.original
        return [t for t in dict.fromkeys(tensors) if graph.tensors[t].is_real and t in graph.computed]

    def _cpu_values(
        self, ops: Sequence[Op], seen: Mapping[int, np.ndarray], ends: Sequence[int]
    ) -> tuple[dict[int, np.ndarray] | None, dict[int, np.ndarray], list[JobResult]]:
        """The CPU's result of every op at the target's operands, and of the whole block at the target's inputs."""
        made = self._floats(t for op in ops for t in op.outputs)
        every = self._floats(t for op in ops for t in op.inputs)
        forced, job = self._run(self._alone(ops, [t for t in every if t in seen], made), seen, f"forced{self._count}")
        outside = [t for t in every if t not in made and t in seen]
        returned = [t for op in ops for t in op.outputs if t not in made and t in ends]  # indices, truth values
        chained, other = self._run(self._alone(ops, outside, [*made, *returned]), seen, f"chained{self._count}")
        return forced, chained or {}, [job, other]

    def _alone(self, ops: Sequence[Op], fed: Sequence[int], outputs: Sequence[int]) -> TappedGraph:
        """The block's ops as a graph of their own that reads `fed` as inputs."""
        made = cut(self._exact, ops, fed, outputs)
        # The values are filled in by _run, which knows them.
        feeds = {name: np.array(t) for name, t in made.inputs.items()}
        return TappedGraph(made.graph, {t: name for name, t in made.outputs.items()}, {}, feeds)

    def _run(
        self, graph: TappedGraph, seen: Mapping[int, np.ndarray], name: str
    ) -> tuple[dict[int, np.ndarray] | None, JobResult]:
        tensors = self.case.original.tensors
        feeds = {n: tensors[int(t)].stored(np.asarray(seen[int(t)], np.float32)) for n, t in graph.feeds.items()}
        feeds = {n: np.ascontiguousarray(value) for n, value in feeds.items()}
        ready = replace(graph, feeds=feeds)
        result = self.case.evaluator.run(ready, [CPU], f"-{name}")[CPU]
        if not result.ok:
            return None, result
        read = {t: tensors[t].real(np.asarray(result.outputs[n])) for t, n in graph.names.items()}
        return {t: value.reshape(tensors[t].shape) for t, value in read.items()}, result

    # -- judging -------------------------------------------------------------------------------------------------------

    def _plain(self, ops: Sequence[Op]) -> tuple[OpPrice, ...]:
        return tuple(
            OpPrice(op, None, self._peak(op), accumulated_of(self.case.original, op, self.case.values), nan, False)
            for op in ops
        )

    def _peak(self, op: Op) -> float:
        values = [self.case.values[t] for t in op.outputs if t in self.case.values]
        finite = [v[np.isfinite(v)] for v in values if v.dtype.kind == "f"]
        return max((float(np.abs(v).max(initial=0.0)) for v in finite), default=nan)

    def _judge(
        self,
        scene: Scene,
        ops: Sequence[Op],
        seen: Mapping[int, np.ndarray],
        forced: Mapping[int, np.ndarray],
        chained: Mapping[int, np.ndarray],
        ends: Sequence[int],
        jobs: list[JobResult],
    ) -> Priced:
        prices = []
        for base in self._plain(ops):
            known = [t for t in base.op.outputs if t in seen and t in forced]
            local = compare_by_scale(reference=forced[known[0]], target=seen[known[0]]) if known else None
            wrong = self._wrong(base.op, local, forced[known[0]] if known else None) and not (
                known[0] in chained and swallowed(self.case.original, known[0], ops, chained, seen)
            )
            prices.append(replace(base, local=local, wrong=wrong))
        guilty = self._guilty(scene, prices)
        if scene.cause is not Cause.PRECISION_LOSS or not ends or len(prices) > MAX_CONTRIBUTIONS:
            return Priced(tuple(prices), guilty, jobs=tuple(jobs))
        prices, given = self._contributions(prices, seen, chained, ends)
        # Of a block that is in line at its own inputs, and amplifies what it is given, no op's own error explains that.
        if guilty >= 0 and faulty(scene.reading, self.case.settings):
            return Priced(tuple(prices), guilty, jobs=tuple(jobs))
        written = {p.op.index: p.contribution for p in prices}
        levels = [c.relative_l2 for c in (scene.reading.local, scene.reading.cumulative) if c is not None]
        lost = where_lost(self.case.original, ops, written, given, {**seen, **chained}, max(levels, default=0.0))
        return Priced(tuple(prices), lost.op, told=lost.said, jobs=tuple(jobs))

    def _wrong(self, op: Op, local: Comparison | None, right: np.ndarray | None) -> bool:
        settings = self.case.settings
        stands_for = self.case.original.tensors[op.outputs[0]].quantisation if op.outputs else None
        step = 0.0
        if stands_for is not None and right is not None and right.any():
            step = stands_for.noise / float(np.sqrt(np.mean(np.square(right, dtype=np.float64))))
        room = min(2 * allowance(self.case.original, [op]) * FP16_UNIT, settings.output_limit)
        return out_of_line(local, max(settings.ratio_limit * max(FP16_UNIT, step), room))

    def _guilty(self, scene: Scene, prices: Sequence[OpPrice]) -> int:
        wrong = [p for p in prices if p.wrong]
        if scene.cause is Cause.OVERFLOW and scene.kind != "underflow":
            wrong = [p for p in wrong if p.local is not None and not p.local.finite_agreement] or wrong
        if not wrong and self._controlled(scene):
            # In fp32 an op that is right is off by far less than fp16 costs.
            least = self.case.settings.conversion_limit
            wrong = [p for p in prices if out_of_line(p.local, least)]
        return wrong[0].op.index if wrong else -1

    def _contributions(
        self,
        prices: Sequence[OpPrice],
        seen: Mapping[int, np.ndarray],
        chained: Mapping[int, np.ndarray],
        ends: Sequence[int],
    ) -> tuple[list[OpPrice], dict[int, float]]:
        """Rounds one op's result at a time, and one tensor that the block is given, and looks at the block's output:
        whose lost digits are they?"""
        ops = [p.op for p in prices]
        made = {t for op in ops for t in op.outputs}
        outside = [t for t in self._floats(t for op in ops for t in op.inputs) if t not in made and t in seen]
        alone = self._alone(ops, outside, ends)
        found = []
        for price in prices:
            graph = replace(alone, graph=_round_one(alone.graph, self.case.original, price.op))
            out, _ = self._run(graph, seen, f"round{self._count}-{price.op.index}")
            found.append(replace(price, contribution=_furthest(chained, out, ends)))
        # What the target gave is rounded already, so this starts from the true values.
        true = {t: np.asarray(self.case.values.get(t, seen[t]), np.float32) for t in outside}
        right, _ = self._run(alone, true, f"true{self._count}")
        given = {}
        for t in outside if right is not None and len(outside) <= MAX_CONTRIBUTIONS else ():
            out, _ = self._run(
                alone, {**true, t: round_array(true[t], Rounding.SIGNIFICAND)}, f"given{self._count}-{t}"
            )
            given[t] = _furthest(right or {}, out, ends)
        return found, given


def _furthest(
    reference: Mapping[int, np.ndarray], target: Mapping[int, np.ndarray] | None, ends: Sequence[int]
) -> float:
    """The largest relative L2 error of some tensors; nan where none is known."""
    known = [t for t in ends if target is not None and t in target and t in reference]
    errors = [compare_by_scale(reference=reference[t], target=(target or {})[t]).relative_l2 for t in known]
    return float(np.fmax.reduce(errors)) if errors else nan


def _round_one(graph: Graph, original: Graph, op: Op) -> Graph:
    """Rounds the result of one op, and the constants it reads, to 11 bits."""
    constants = [t for t in op.inputs if original.tensors[t].constant]
    return emulate(graph, Rounding.SIGNIFICAND, only={*op.outputs, *constants})
