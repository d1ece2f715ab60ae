"""One culprit's cause and evidence: what its errors in every run, its ops' ranges and its buffers say together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan

import numpy as np

from bisect_litert.block_record import Comparison
from bisect_litert.devices.jobs import JobResult
from bisect_litert.graphs.cutting import OUTPUT_PREFIX, boundary, cut, sinks
from bisect_litert.graphs.dequantised import as_floats
from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.emulation import Rounding, emulate
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import Evaluator, TappedGraph
from bisect_litert.measuring.metrics import compare_by_scale, out_of_line
from bisect_litert.measuring.readings import Errors, Force, Forward, OtherWeights, Tap, Values
from bisect_litert.record import Culprit, Settings
from bisect_litert.search.culprits import Reading, cause_of, faulty, leaves_range, misconverted, small_beside
from bisect_litert.search.ranges import RangeFault, accumulated_peak, first_fault
from bisect_litert.taps.aliasing import operand_in_place_of
from bisect_litert.taps.tapper import Layout
from bisect_litert.verdicts import advice, diagnosis
from bisect_litert.vocabulary import NO_CONTROL, OTHER_WEIGHTS, PYTORCH, Cause


@dataclass(frozen=True)
class Investigation:
    """What there is to work with."""

    evaluator: Evaluator
    base: TappedGraph
    original: Graph
    """The graph without tap outputs; its tensor indices are those of the taps."""
    taps: Sequence[Tap]
    owners: Mapping[str, str]
    links: Mapping[str, tuple[tuple[str, ...], float, int]]
    truth: Forward
    force: Force
    fp32_cost: Mapping[str, float]
    """What fp32 costs locally (relative L2), by tap key and output label."""
    values: Mapping[int, np.ndarray]
    settings: Settings
    target: str
    first: dict[str, JobResult]
    """The first round's results, by kind; they lose their tensors as these are measured."""
    measured: dict[str, Errors] = field(default_factory=dict)
    """What was measured already, by job."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """What honest devices may differ by whatever their precision, likewise."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """How outputs hold what the model returns, by label, where they are not merely reshaped."""
    reference: str = PYTORCH
    """What the truth was computed by."""
    judges_conversion: bool = True
    """Whether the reference is independent of the file, so that the CPU run can show the conversion to be wrong."""
    other_weights: OtherWeights = field(default_factory=OtherWeights)
    say: Callable[[str], None] = lambda _: None
    """Told which block goes wrong first, as soon as it is seen: cause, op and proof take as long again."""


def void(values: Values | None) -> bool:
    """Whether a run wrote nothing at all: not one output's fault, but the whole run's."""
    counts = values.unwritten if values else {}
    return bool(counts) and all(counts.values())


class Blamer:
    """Turns a wrong reading into a culprit.

    Args:
        case: What there is to work with.
    """

    def __init__(self, case: Investigation) -> None:
        self.case = case
        self._half_tensors: dict[tuple[int, tuple[int, ...]], tuple[TappedGraph, dict[int, np.ndarray]]] = {}
        """By the graph's id and the ops, with the graph, so that no other one gets its id."""
        self._alone = 0
        """Runs of some ops alone."""

    def worst(self, readings: Sequence[Reading], block: str) -> Reading:
        """Returns the reading of a block that shows its fault best."""
        settings = self.case.settings
        bad = [r for r in readings if r.block == block and (faulty(r, settings) or misconverted(r, settings))]
        return max(
            bad,
            key=lambda r: (
                r.local is not None and r.local.unwritten > 0,
                misconverted(r, settings),
                r.local is not None and not r.local.finite_agreement,
                0.0 if isnan(r.ratio) else r.ratio,
            ),
        )

    def blame(
        self, reading: Reading, hidden: bool, values: Values | None, graph: TappedGraph, shipped: Sequence[Reading] = ()
    ) -> Culprit:
        """Names the cause of a wrong reading.

        Args:
            reading: What was measured.
            hidden: Whether it shows only in a healed graph.
            values: The target's tensors in the shipped graph.
            graph: The graph of this round.
            shipped: All readings of the shipped graph.
        """
        settings, case = self.case.settings, self.case
        fault: RangeFault | None = None
        said = ""
        cause = cause_of(reading, settings)
        if cause in (Cause.OVERFLOW, Cause.PRECISION_LOSS):
            ops = self._ops(reading)
            if not leaves_range(reading, settings):
                peak, op = accumulated_peak(case.original, ops, case.values)
                reading = replace(reading, accumulated=peak)
                if op is not None and leaves_range(reading, settings):
                    said = f"{op.type} (op {op.index}) adds up magnitudes to {peak:.3g}, where fp16 ends at 65504."
            else:
                fault = first_fault(case.original, ops, case.values, self._half_values(graph, ops))
            cause = cause_of(reading, settings)
            if cause is Cause.PRECISION_LOSS and not settings.fp32:
                alone = self._half_alone(ops)
                reading = replace(reading, half=self._seen_alone(reading, alone) or reading.half)
                if leaves_range(reading, settings):
                    fault = first_fault(case.original, ops, case.values, alone)
                    cause = cause_of(reading, settings)
        assert cause is not None
        cause = self._buffer_cause(reading, values, shipped) or cause
        kind = fault.kind if fault is not None and cause is Cause.OVERFLOW and fault.kind == "underflow" else ""
        if cause is Cause.WRONG_KERNEL and reading.uncontrolled:
            kind = NO_CONTROL
        sentences = diagnosis.evidence(reading, cause, settings, fault, said, case.target)
        if cause is Cause.CONVERSION and case.other_weights.within(reading.block):
            kind, sentences = OTHER_WEIGHTS, (case.other_weights.sentence, *sentences)
        if cause is Cause.UNWRITTEN_OUTPUT:
            sentences = (*self._returned_twice(reading), *sentences)
            if self._hands_on():
                sentences = ("The model returns an input unchanged; LiteRT does not write such an output.", *sentences)
        origin = fault.op.index if fault is not None and cause is Cause.OVERFLOW else -1
        step = advice.default(cause, kind)
        local, ratio = reading.level, reading.ratio
        return Culprit(reading.block, cause, kind, sentences, step, hidden, origin, local=local, ratio=ratio)

    def hidden_overflow(self, reading: Reading, hidden: bool, graph: TappedGraph) -> Culprit | None:
        """Names an overflow inside a block whose output hardly shows it; None when nothing inside overflows."""
        ops = self._ops(reading)
        fault = first_fault(self.case.original, ops, self.case.values, self._half_values(graph, ops))
        if fault is None or fault.kind != "overflow":
            return None
        sentences = diagnosis.evidence(reading, Cause.OVERFLOW, self.case.settings, fault, "", self.case.target)
        step = advice.default(Cause.OVERFLOW)
        local, ratio = reading.level, reading.ratio
        return Culprit(reading.block, Cause.OVERFLOW, "", sentences, step, hidden, local=local, ratio=ratio)

    def quiet_kernel(self, reading: Reading, hidden: bool) -> Culprit:
        """Names a wrong kernel inside a block whose output hardly shows it."""
        sentences = diagnosis.evidence(reading, Cause.WRONG_KERNEL, self.case.settings, None, "", self.case.target)
        step = advice.default(Cause.WRONG_KERNEL)
        local, ratio = reading.level, reading.ratio
        return Culprit(reading.block, Cause.WRONG_KERNEL, "", sentences, step, hidden, local=local, ratio=ratio)

    def _buffer_cause(self, reading: Reading, values: Values | None, shipped: Sequence[Reading]) -> Cause | None:
        """Whether an output of the model was never written, or holds zeros or an operand's values while the graph
        reads its own."""
        if reading.local is not None and reading.local.unwritten and not void(values):
            return Cause.UNWRITTEN_OUTPUT
        if self._hands_on() and any(c is not None and c.unwritten for c in (reading.local, reading.cpu)):
            return Cause.UNWRITTEN_OUTPUT
        tensor = self._tensor(reading)
        seen = self._returned(reading, tensor, values) if values else None
        sound = self._read_right(reading, tensor, shipped)
        if seen is None or sound is False:
            return None
        own = self.case.values.get(tensor)
        if sound and own is not None and np.any(own) and not np.any(seen):
            return Cause.UNWRITTEN_OUTPUT  # a buffer of the GPU that was handed back as it was made
        aliased = operand_in_place_of(self.case.original, tensor, seen, self.case.values)
        return Cause.ALIASED_OUTPUT if aliased is not None else None

    def _returned_twice(self, reading: Reading) -> tuple[str, ...]:
        """A sentence on the outputs that are the same tensor of the graph as this one, if there are any.

        The converter makes one tensor of what only looks like two in PyTorch, a transpose of a single row for one.
        """
        tensor = self._tensor(reading)
        at = {port.name: port.tensor for port in self.case.original.outputs}
        same = [label for label, port in self.case.base.outputs.items() if tensor >= 0 and at.get(port) == tensor]
        if len(same) < 2:
            return ()
        too = ", on the CPU as well" if reading.cpu is not None and reading.cpu.unwritten else ""
        return (f"Outputs {' and '.join(same)} are one tensor of the graph, of which LiteRT writes one only{too}.",)

    def _read_right(self, reading: Reading, tensor: int, shipped: Sequence[Reading]) -> bool | None:
        """Whether something that reads a tensor does not show its error, so that it is the buffer's alone; None where
        nothing reads it. A branch that collapsed to zero leaves the skip path's values too, and all of its readers
        show it."""
        whole, limit = reading.cumulative, self.case.settings.output_limit
        same = {r.tap for r in shipped if self._tensor(r) == tensor} | {reading.tap}
        readers = [r.cumulative for r in shipped if r.tap not in same and same & set(r.parents)]
        known = [c for c in readers if c is not None]
        if not known or whole is None:
            return None
        return any(not out_of_line(c, limit) or small_beside(c, whole) for c in known)

    def _hands_on(self) -> bool:
        """Whether the model returns an input unchanged; LiteRT may then write none of its outputs, on the CPU
        either."""
        graph = self.case.original
        return bool({port.tensor for port in graph.inputs} & {port.tensor for port in graph.outputs})

    def _returned(self, reading: Reading, tensor: int, values: Values) -> np.ndarray | None:
        """What came back for a tensor that is an output of the model, in the graph's order."""
        if reading.output:
            value, layout = values.outputs.get(reading.tap), self.case.layouts.get(reading.tap)
            shape = self.case.original.tensors[tensor].shape if tensor >= 0 else ()
            return layout.from_torch(value, shape) if value is not None and layout is not None else value
        tap = next((t for t in self.case.taps if t.key == reading.tap), None)
        value = values.taps.get(reading.tap)
        if (
            tap is None
            or tap.layout is None
            or value is None
            or tensor not in {p.tensor for p in self.case.original.outputs}
        ):
            return None
        return tap.layout.from_torch(value, self.case.original.tensors[tensor].shape)

    def _tensor(self, reading: Reading) -> int:
        """Index of the tensor a reading is of."""
        if not reading.output:
            return next((t.tensor for t in self.case.taps if t.key == reading.tap), -1)
        at = {port.name: port.tensor for port in self.case.original.outputs}
        return at.get(self.case.base.outputs.get(reading.tap, ""), -1)

    def _ops(self, reading: Reading) -> tuple[Op, ...]:
        case = self.case
        return case.original.inside([self._tensor(reading)], {t.tensor for t in case.taps if t.tensor >= 0})

    def _half_values(self, graph: TappedGraph, ops: Sequence[Op]) -> dict[int, np.ndarray]:
        """What ops write in the emulated fp16 run of one round's graph, after rounding, by tensor.

        One run tells it for every block, if it is not too much to keep at once.
        """
        source, evaluator = as_floats(graph.graph), self.case.evaluator
        whole = evaluator.fits(source, (t for op in self.case.original.ops for t in op.outputs))
        if whole:
            ops = self.case.original.ops
        key = id(graph), tuple(op.index for op in ops)
        if key not in self._half_tensors:
            rounded = emulate(source if whole else _ending(source, sinks(ops)), Rounding.HALF)
            at = {t.name: t.index for t in rounded.tensors if t.name.startswith("rounded_")}
            place = {t: at.get(f"rounded_{t}", t) for op in ops for t in op.outputs}
            name, wanted = f"half-tensors{len(self._half_tensors)}", tuple(place.values())
            found = evaluator.tensors(rounded, name, graph.feeds, wanted)
            self._half_tensors[key] = graph, {t: found[i] for t, i in place.items() if i in found}
        return self._half_tensors[key][1]

    def _half_alone(self, ops: Sequence[Op]) -> dict[int, np.ndarray]:
        """What ops write in emulated fp16 from what they should be given; empty where that cannot be told.

        The emulated run as a whole may leave the range before it comes to them, where the target does not: the target
        keeps refused ops on the CPU, and there they have fp32's range.
        """
        source, values = as_floats(self.case.original), self.case.values
        given = boundary(source, ops)
        if not ops or not all(t in values for t in given):
            return {}
        part = cut(source, ops, given, sinks(ops))
        rounded = emulate(part.graph, Rounding.HALF)
        at = {t.name: t.index for t in rounded.tensors if t.name.startswith("rounded_")}
        place = {t: at.get(f"rounded_{t}", t) for op in ops for t in op.outputs}
        feeds = {name: source.tensors[t].stored(values[t]) for name, t in part.inputs.items()}
        self._alone += 1
        found = self.case.evaluator.tensors(rounded, f"half-alone{self._alone}", feeds, tuple(place.values()))
        return {t: found[i] for t, i in place.items() if i in found}

    def _seen_alone(self, reading: Reading, alone: Mapping[int, np.ndarray]) -> Comparison | None:
        """A block's tensor in emulated fp16, at right inputs, against the CPU's."""
        tensor = self._tensor(reading)
        if tensor not in alone or tensor not in self.case.values:
            return None
        terms = reading.cumulative.terms if reading.cumulative else 0.0
        return compare_by_scale(reference=self.case.values[tensor], target=alone[tensor], terms=terms)


def _ending(graph: Graph, ends: Sequence[int]) -> Graph:
    """What of a graph leads to some tensors; those that it does not compute are left out."""
    editor = Editor(graph)
    editor.drop_outputs()
    for t in ends:
        if t in graph.producer:
            editor.add_output(f"{OUTPUT_PREFIX}{t:05d}", t)
    editor.prune()
    return editor.graph()
