"""What the ops with a plain shape rule do to dimensions; those of any other op are held as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bisect_litert.graphs.axes import Axes, Axis
from bisect_litert.graphs.graph import Graph, Op

Rule = Callable[[Axes, Op], bool]
"""Joins the dimensions of one op, and says whether it could."""
_SAME = frozenset(
    [
        "ABS",
        "CAST",
        "CEIL",
        "COS",
        "CUMSUM",
        "DEQUANTIZE",
        "ELU",
        "EXP",
        "FLOOR",
        "GELU",
        "HARD_SWISH",
        "L2_NORMALIZATION",
        "LEAKY_RELU",
        "LOG",
        "LOGICAL_NOT",
        "LOGISTIC",
        "LOG_SOFTMAX",
        "NEG",
        "QUANTIZE",
        "RELU",
        "RELU6",
        "RELU_0_TO_1",
        "RELU_N1_TO_1",
        "ROUND",
        "RSQRT",
        "SIGN",
        "SIN",
        "SOFTMAX",
        "SQRT",
        "SQUARE",
        "TANH",
        "ZEROS_LIKE",
    ]
)
_BROADCAST = frozenset(
    [
        "ADD",
        "ATAN2",
        "DIV",
        "EQUAL",
        "FLOOR_DIV",
        "FLOOR_MOD",
        "GREATER",
        "GREATER_EQUAL",
        "LESS",
        "LESS_EQUAL",
        "LOGICAL_AND",
        "LOGICAL_OR",
        "MAXIMUM",
        "MINIMUM",
        "MUL",
        "NOT_EQUAL",
        "POW",
        "PRELU",
        "SELECT",
        "SELECT_V2",
        "SQUARED_DIFFERENCE",
        "SUB",
    ]
)
_REDUCTIONS = frozenset(
    ["MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM", "ARG_MAX", "ARG_MIN"]
)
_POOLS = frozenset(["AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"])
_REGROUPED = frozenset(["RESHAPE", "EXPAND_DIMS", "SQUEEZE"])
_SAME_PADDING = 0
"""TensorFlow Lite's Padding.SAME."""


def read_axes(graph: Graph) -> Axes:
    """Returns a graph's dimensions, those that change together joined."""
    axes = Axes(graph)
    for op in graph.ops:
        rule = _rule(op.type)
        try:
            fits = rule is not None and rule(axes, op)
        except (IndexError, TypeError, ValueError):  # operands that are not what the rule knows
            fits = False
        if not fits:
            for t in (*op.inputs, *op.outputs):
                if t >= 0:
                    axes.hold_all(t)
    for tensor in graph.tensors:
        if tensor.constant and graph.constant(tensor.index) is None:
            axes.hold_all(tensor.index)
    return axes


def _rule(kind: str) -> Rule | None:
    families: Sequence[tuple[frozenset[str], Rule]] = (
        (_SAME, _same),
        (_BROADCAST, _broadcast),
        (_REDUCTIONS, _reduction),
        (_POOLS, _pool),
        (_REGROUPED, _regrouped),
    )
    return _SINGLE.get(kind) or next((rule for kinds, rule in families if kind in kinds), None)


def _same(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    for axis in range(len(axes.shape(x))):
        axes.join((x, axis), (y, axis))
    return axes.shape(x) == axes.shape(y)


def _broadcast(axes: Axes, op: Op) -> bool:
    y = op.outputs[0]
    rank = len(axes.shape(y))
    for t in op.inputs:
        _aligned(axes, t, y, len(axes.shape(t)), rank)
    return True


def _aligned(axes: Axes, t: int, y: int, rank: int, out_rank: int) -> None:
    """Joins the first `rank` dimensions of t with the first `out_rank` of y, from the right; one of size 1 stays."""
    for axis in range(rank):
        other = axis + out_rank - rank
        if axes.shape(t)[axis] == axes.shape(y)[other]:
            axes.join((t, axis), (y, other))


def _reduction(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    rank = len(axes.shape(x))
    gone = {n % rank for n in axes.numbers(op.inputs[1])}
    kept = len(axes.shape(y)) == rank
    at = 0
    for axis in range(rank):
        if axis not in gone:
            axes.join((x, axis), (y, at))
        at += kept or axis not in gone
    return True


def _fully_connected(axes: Axes, op: Op) -> bool:
    x, weight, y = op.inputs[0], op.inputs[1], op.outputs[0]
    last, end = len(axes.shape(x)) - 1, len(axes.shape(y)) - 1
    axes.join_runs([(x, axis) for axis in range(last)], [(y, axis) for axis in range(end)])
    axes.join((x, last), (weight, 1))
    axes.join((y, end), (weight, 0))
    return _bias(axes, op, (y, end))


def _bias(axes: Axes, op: Op, channel: Axis) -> bool:
    if len(op.inputs) > 2 and op.inputs[2] >= 0:
        bias = op.inputs[2]
        if axes.shape(bias) != (axes.shape(channel[0])[channel[1]],):
            return False
        axes.join(channel, (bias, 0))
    return True


def _batch_matmul(axes: Axes, op: Op) -> bool:
    a, b, y = op.inputs[0], op.inputs[1], op.outputs[0]
    ranks = {t: len(axes.shape(t)) for t in (a, b, y)}
    rows, inner = (ranks[a] - 2, ranks[a] - 1)[:: -1 if axes.graph.option(op, "adjX") else 1]
    other, columns = (ranks[b] - 2, ranks[b] - 1)[:: -1 if axes.graph.option(op, "adjY") else 1]
    axes.join((a, inner), (b, other))
    axes.join((a, rows), (y, ranks[y] - 2))
    axes.join((b, columns), (y, ranks[y] - 1))
    for t in (a, b):
        _aligned(axes, t, y, ranks[t] - 2, ranks[y] - 2)
    return True


def _convolution(axes: Axes, op: Op) -> bool:
    x, kernel, y = op.inputs[0], op.inputs[1], op.outputs[0]
    axes.join((x, 0), (y, 0))
    _window(axes, op, axes.shape(kernel)[1:3])
    if op.type == "CONV_2D":
        if axes.shape(kernel)[3] != axes.shape(x)[3]:
            return False  # in groups
        axes.join((x, 3), (kernel, 3))
        axes.join((y, 3), (kernel, 0))
    else:
        if axes.shape(x)[3] != axes.shape(y)[3]:
            return False
        axes.join((x, 3), (kernel, 3), (y, 3))
        axes.hold((kernel, 0))
    axes.hold((kernel, 1), (kernel, 2))
    return _bias(axes, op, (y, 3))


def _pool(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    axes.join((x, 0), (y, 0))
    axes.join((x, 3), (y, 3))
    size = (int(axes.graph.option(op, "filterHeight") or 0), int(axes.graph.option(op, "filterWidth") or 0))
    _window(axes, op, size)
    return True


def _window(axes: Axes, op: Op, size: Sequence[int]) -> None:
    """Joins height and width where the window keeps them whatever they are."""
    x, y = op.inputs[0], op.outputs[0]
    padded = axes.graph.option(op, "padding") == _SAME_PADDING
    strides = axes.graph.option(op, "strideH"), axes.graph.option(op, "strideW")
    for axis, side, stride in zip((1, 2), size, strides, strict=True):
        if stride == 1 and (padded or side == 1):
            axes.join((x, axis), (y, axis))
        else:
            axes.hold((x, axis), (y, axis))


def _transpose(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    for axis, source in enumerate(axes.numbers(op.inputs[1])):
        axes.join((x, source), (y, axis))
    return True


def _regrouped(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    before, after = len(axes.shape(x)), len(axes.shape(y))
    if op.type == "RESHAPE":
        if len(op.inputs) < 2 or len(axes.numbers(op.inputs[1])) != after:
            return False
        axes.spelt += [(op, 1, axis, (y, axis)) for axis in range(after)]
    axes.join_runs([(x, axis) for axis in range(before)], [(y, axis) for axis in range(after)])
    return True


def _concatenation(axes: Axes, op: Op) -> bool:
    y = op.outputs[0]
    rank = len(axes.shape(y))
    along = int(axes.graph.option(op, "axis") or 0) % rank
    for t in op.inputs:
        for axis in range(rank):
            axes.join((t, axis), (y, axis))
    axes.hold((y, along), *((t, along) for t in op.inputs))
    return True


def _split(axes: Axes, op: Op) -> bool:
    x, dim = (op.inputs[1], op.inputs[0]) if op.type == "SPLIT" else (op.inputs[0], op.inputs[2])
    rank = len(axes.shape(x))
    along = axes.numbers(dim)[0] % rank
    for y in op.outputs:
        for axis in range(rank):
            if axis == along:
                axes.hold((x, axis), (y, axis))
            else:
                axes.join((x, axis), (y, axis))
    return True


def _slice(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    begin, size = axes.numbers(op.inputs[1]), axes.numbers(op.inputs[2])
    for axis, whole in enumerate(axes.shape(x)):
        if begin[axis] == 0 and size[axis] in (-1, whole):
            axes.join((x, axis), (y, axis))
            axes.spelt.append((op, 2, axis, (y, axis)))
        else:
            axes.hold((x, axis), (y, axis))
    return True


def _broadcast_to(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    rank = len(axes.shape(y))
    if len(axes.numbers(op.inputs[1])) != rank:
        return False
    axes.spelt += [(op, 1, axis, (y, axis)) for axis in range(rank)]
    _aligned(axes, x, y, len(axes.shape(x)), rank)
    return True


def _pad(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    pads = axes.numbers(op.inputs[1])
    for axis in range(len(axes.shape(x))):
        if pads[2 * axis] == pads[2 * axis + 1] == 0:
            axes.join((x, axis), (y, axis))
        else:
            axes.hold((x, axis), (y, axis))
    return True


def _gather(axes: Axes, op: Op) -> bool:
    x, indices, y = op.inputs[0], op.inputs[1], op.outputs[0]
    if axes.graph.option(op, "batchDims"):
        return False
    rank, more = len(axes.shape(x)), len(axes.shape(indices))
    along = int(axes.graph.option(op, "axis") or 0) % rank
    axes.hold((x, along))
    for axis in range(more):
        axes.join((indices, axis), (y, along + axis))
    for axis in range(rank):
        if axis != along:
            axes.join((x, axis), (y, axis if axis < along else axis + more - 1))
    return True


def _resize(axes: Axes, op: Op) -> bool:
    x, y = op.inputs[0], op.outputs[0]
    axes.join((x, 0), (y, 0))
    axes.join((x, 3), (y, 3))
    axes.hold(*((t, axis) for t in (x, y) for axis in (1, 2)))
    return True


_SINGLE: Mapping[str, Rule] = {
    "BATCH_MATMUL": _batch_matmul,
    "BROADCAST_TO": _broadcast_to,
    "CONCATENATION": _concatenation,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _convolution,
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gather,
    "PAD": _pad,
    "PADV2": _pad,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "SLICE": _slice,
    "SPLIT": _split,
    "SPLIT_V": _split,
    "TRANSPOSE": _transpose,
}
