"""Where a block leaves fp16's range: the first op whose result does, and by how much, from CPU runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.metrics import (
    FP16_NORMAL,
    FP16_UNIT,
    compare,
    compare_by_scale,
    out_of_line,
    true_infinities,
)

IN_LINE = 0.1
"""Relative L2 error up to which a tensor behind an infinity counts as unharmed: far above rounding, far below
nonsense."""
FP16_LAST = 65520.0
"""Smallest magnitude that rounds to infinity in fp16."""
SMALLEST = 2.0**-24
"""Smallest positive fp16 number, 5.96e-8; results below half of it become zero."""
THIN = 10.0
"""Times half a unit in the last place that a small tensor's error has to be for its missing digits to be the reason."""
CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")


@dataclass(frozen=True, slots=True)
class RangeFault:
    """The op at which an fp16 run first leaves the range."""

    op: Op
    tensor: str
    kind: str
    """"overflow", "underflow"."""
    reference_peak: float
    """Largest finite magnitude that the op writes, or reads when that is what does not fit."""
    lost: int
    """Elements that became non-finite or zero."""
    elements: int
    gradual: bool = False
    """Whether what is lost are digits, below the smallest number that fp16 holds with all of them, not the value."""

    def sentence(self) -> str:
        """The finding, for people."""
        where = f"{self.op.type} (op {self.op.index})"
        if self.kind == "overflow":
            return (
                f"{where} handles values up to {self.reference_peak:.3g} where fp16 ends at 65504; "
                f"{self.lost} of {self.elements} values leave the range"
            )
        if self.gradual:
            return (
                f"{where} writes values up to {self.reference_peak:.3g}; below 6.1e-05 fp16 has fewer digits, and "
                f"{self.lost} of {self.elements} values are there"
            )
        return (
            f"{where}: {self.lost} of {self.elements} values fall below the smallest fp16 number (6e-8), or are "
            "divided by one that did"
        )


def first_fault(
    graph: Graph, ops: Sequence[Op], reference: Mapping[int, np.ndarray], half: Mapping[int, np.ndarray]
) -> RangeFault | None:
    """Finds the first of a block's ops whose fp16-emulated result is no longer usable.

    Args:
        graph: The converted graph.
        ops: The block's ops, in execution order.
        reference: fp32 values of the graph's tensors, by index.
        half: The emulated run's values of the same tensors, already rounded.

    Returns:
        The first op with a new infinity or NaN; without one, the first that flushes to zero what is not small among
        its neighbours; without that, the first whose values are all so small that fp16 has fewer digits for them.
    """
    flushed: RangeFault | None = None
    thinned: RangeFault | None = None
    zeros: dict[int, RangeFault] = {}
    before: set[int] = set()
    """Tensors that are not finite because of another block."""
    for op in ops:
        for t in op.outputs:
            ref, out = reference.get(t), half.get(t)
            if ref is None or out is None or ref.dtype.kind != "f" or ref.shape != out.shape:
                continue
            new = ~np.isfinite(out) & np.isfinite(ref)
            if new.any() and swallowed(graph, t, ops, reference, half):
                continue
            peak = float(np.abs(ref[np.isfinite(ref)]).max(initial=0.0))
            name = graph.tensors[t].name
            root = next((zeros[i] for i in op.inputs if i in zeros), None)
            if new.any() and root is not None:
                return root  # 1/0, log 0, 0 * inf: what became zero is the origin
            if new.any():
                read = _peak_read(graph, op, reference)
                written = bool((np.abs(ref[new]) > FP16_LAST).any())
                if not written and read < FP16_LAST:
                    if any(i in before or _lost_before(graph, i, ops, reference, half) for i in op.inputs):
                        before.add(t)
                        continue
                    return _flushed_operand(graph, op, ops, reference, half) or RangeFault(
                        op, name, "underflow", peak, int(new.sum()), ref.size
                    )
                return RangeFault(op, name, "overflow", peak if written else read, int(new.sum()), ref.size)
            zeroed = (out == 0) & (np.abs(ref) > 0.1 * peak) & np.isfinite(ref)
            if peak > 0 and zeroed.any():
                zeros[t] = root or RangeFault(op, name, "underflow", peak, int(zeroed.sum()), ref.size)
                flushed = flushed or zeros[t]
            if 0 < peak < FP16_NORMAL and out_of_line(compare(reference=ref, target=out), THIN * FP16_UNIT):
                thinned = thinned or RangeFault(
                    op, name, "underflow", peak, int(np.count_nonzero(ref)), ref.size, gradual=True
                )
    return flushed or thinned


def _lost_before(
    graph: Graph, t: int, ops: Sequence[Op], reference: Mapping[int, np.ndarray], half: Mapping[int, np.ndarray]
) -> bool:
    """Whether a tensor that another block wrote is not finite though it should be: no op of this block is the first."""
    ref, out, made_by = reference.get(t), half.get(t), graph.producer.get(t)
    if ref is None or out is None or made_by is None or any(op.index == made_by.index for op in ops):
        return False
    return bool((np.isfinite(ref) & ~np.isfinite(out)).any())


def _flushed_operand(
    graph: Graph, op: Op, ops: Sequence[Op], reference: Mapping[int, np.ndarray], half: Mapping[int, np.ndarray]
) -> RangeFault | None:
    """The op before, if some of its results became zero, however small beside their neighbours: an epsilon that is
    gone."""
    inside = {other.index for other in ops}
    for t in op.inputs:
        ref, out, made_by = reference.get(t), half.get(t), graph.producer.get(t)
        if ref is None or out is None or made_by is None or made_by.index not in inside:
            continue
        gone = (out == 0) & (ref != 0)
        if gone.any():
            peak = float(np.abs(ref[np.isfinite(ref)]).max(initial=0.0))
            return RangeFault(made_by, graph.tensors[t].name, "underflow", peak, int(gone.sum()), ref.size)
    return None


def _back_in_line(reference: np.ndarray, target: np.ndarray, lost: np.ndarray) -> bool:
    """Whether a result is in line, and by itself where it was made of infinities: rows that are right outweigh what a
    root or a quotient makes of the others.

    Args:
        reference: The right result.
        target: What became of it.
        lost: Which elements of an operand are infinite; looked at where it fits the result's shape.
    """
    if out_of_line(compare_by_scale(reference=reference, target=target), IN_LINE):
        return False
    try:
        there = np.broadcast_to(lost, reference.shape)
    except ValueError:  # a sum, or a product of matrices
        return True
    # What fp16 has no number for is zero on any device.
    right, got = (np.where(np.abs(v[there]) < SMALLEST / 2, 0, v[there]) for v in (reference, target))
    return np.array_equal(right, got) or not out_of_line(compare(reference=right, target=got), IN_LINE)


def swallowed(
    graph: Graph, t: int, ops: Sequence[Op], reference: Mapping[int, np.ndarray], target: Mapping[int, np.ndarray]
) -> bool:
    """Whether large numbers that became infinities do no harm among some ops: of the right sign, and all that becomes
    of them there comes back in line, as the mask behind a softmax does.

    What other blocks make of them is not looked at: a mask that is computed once has readers in blocks that are wrong
    for reasons of their own.
    """
    # A result that is off without an infinity in it is harm done, whatever a skip path makes of it further on.
    if not np.isinf(target[t]).any() or not true_infinities(reference[t], target[t]):
        return False
    inside = {op.index for op in ops}
    results = [o for op in graph.consumers.get(t, ()) if op.index in inside for o in op.outputs]
    return bool(results) and all(
        o in reference
        and o in target
        and (
            _back_in_line(reference[o], target[o], ~np.isfinite(target[t]))
            or swallowed(graph, o, ops, reference, target)
        )
        for o in results
    )


def _peak_read(graph: Graph, op: Op, reference: Mapping[int, np.ndarray]) -> float:
    """Largest finite magnitude an op reads: what another op wrote, an input of the model, a constant."""
    peak = 0.0
    for t in op.inputs:
        value = reference.get(t)
        value = graph.constant(t) if value is None else value
        if value is not None and value.dtype.kind == "f":
            peak = max(peak, float(np.abs(value[np.isfinite(value)]).max(initial=0.0)))
    return peak


def accumulated_peak(graph: Graph, ops: Sequence[Op], values: Mapping[int, np.ndarray]) -> tuple[float, Op | None]:
    """Largest sum of magnitudes that an op of the block accumulates: the bound on any partial sum it can pass through.

    For SUM, MEAN, CUMSUM, FULLY_CONNECTED and BATCH_MATMUL it is exact; for convolutions and pools it is a bound,
    peak|x| * sum|w|.
    """
    best: tuple[float, Op | None] = (0.0, None)
    for op in ops:
        found = accumulated_of(graph, op, values)
        if found > best[0]:
            best = (found, op)
    return best


def accumulated_of(graph: Graph, op: Op, values: Mapping[int, np.ndarray]) -> float:
    """Bound on the partial sums inside an op; 0 for one that sums nothing or whose operands are not known."""

    def value(position: int) -> np.ndarray | None:
        if position >= len(op.inputs):
            return None
        t = op.inputs[position]
        found = values.get(t)
        found = graph.constant(t) if found is None else found
        return None if found is None or found.dtype.kind != "f" else np.abs(np.where(np.isfinite(found), found, 0))

    x = value(0)
    if x is None or not x.size:
        return 0.0
    if op.type in ("SUM", "MEAN", "AVERAGE_POOL_2D"):
        over = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
        if over is not None:
            return float(x.sum(axis=tuple(int(a) for a in over.reshape(-1))).max())
        size = graph.tensors[op.outputs[0]].size
        return float(x.sum()) if size == 1 else float(x.max()) * (x.size / max(1, size))
    if op.type == "CUMSUM":
        axis = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
        return float(x.sum(axis=int(axis.reshape(-1)[0])).max()) if axis is not None else 0.0
    w = value(1)
    if w is None:
        return 0.0
    if op.type == "FULLY_CONNECTED":
        return float((x.reshape(-1, w.shape[-1]) @ w.T).max())
    if op.type == "BATCH_MATMUL" and x.ndim > 1 and w.ndim > 1:
        x = x.swapaxes(-1, -2) if graph.option(op, "adjX") else x
        w = w.swapaxes(-1, -2) if graph.option(op, "adjY") else w
        return float((x @ w).max())
    if op.type in CONVOLUTIONS:
        axes = (1, 2) if op.type == "DEPTHWISE_CONV_2D" else (1, 2, 3)
        return float(x.max() * w.sum(axis=axes[: w.ndim - 1]).max())
    return 0.0
