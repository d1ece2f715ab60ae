"""Which dimensions of a graph's tensors have to be of one size, and the graph with some of them made smaller.

Read off the ops whose shape rule is plain. Dimensions of any other op are held as they are. A RESHAPE's, SLICE's or
BROADCAST_TO's constant that spells a shape out is written anew.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bisect_litert.graph import Graph, Op

Axis = tuple[int, int]
"""A tensor's index, and one of its dimensions."""

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


class Axes:
    """The dimensions of a graph's tensors as products of atoms; tensors that share an atom change together.

    A RESHAPE merges dimensions or splits them, so a dimension is a product of atoms in row-major order:
    [batch * tokens] beside [batch, tokens].

    Args:
        graph: The graph; sizes are those it has.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes: dict[int, int] = {}
        """By atom; whoever keeps what `cut` made updates them."""
        self.spelt: list[tuple[Op, int, int, Axis]] = []
        """An op, which of its inputs spells sizes out, at which position, and the size of what."""
        self._bound: dict[int, tuple[int, ...]] = {}
        self._held: set[int] = set()
        self._dims: dict[int, list[tuple[int, ...]]] = {}
        for op in graph.ops:
            rule = _rule(op.type)
            try:
                fits = rule is not None and rule(self, op)
            except (IndexError, TypeError, ValueError):  # operands that are not what the rule knows
                fits = False
            if not fits:
                self.hold(*((t, a) for t in (*op.inputs, *op.outputs) if t >= 0 for a in range(len(self.shape(t)))))
        for t in list(self._dims):
            if graph.tensors[t].constant and graph.constant(t) is None:
                self.hold(*((t, axis) for axis in range(len(self.shape(t)))))

    def free(self) -> tuple[int, ...]:
        """Returns the atoms that can be made smaller."""
        held = {atom for old in self._held for atom in self._resolved((old,))}
        used = {atom for dims in self._dims.values() for atoms in dims for atom in self._resolved(atoms)}
        return tuple(sorted(used - held))

    def tensors(self, atom: int) -> tuple[Axis, ...]:
        """Returns the dimensions that an atom is part of."""
        return tuple(
            (t, axis)
            for t, dims in self._dims.items()
            for axis, atoms in enumerate(dims)
            if atom in self._resolved(atoms)
        )

    def part(self, t: int, value: np.ndarray, atom: int, start: int, size: int) -> np.ndarray:
        """Returns the part of a tensor's value that is left when an atom is cut to `size` from `start` on."""
        for axis, atoms in enumerate(self._dims.get(t, ())):
            kept = self._kept(atoms, atom, start, size)
            if kept is not None:
                value = np.take(value, kept, axis)
        return np.array(value, order="C")

    def place(self, t: int, index: Sequence[int], atom: int) -> int | None:
        """Returns where along an atom an element of a tensor lies; None when the tensor is not part of it."""
        for axis, atoms in enumerate(self._dims.get(t, ())):
            resolved = self._resolved(atoms)
            if atom in resolved:
                sizes = [self.sizes[a] for a in resolved]
                return int(np.unravel_index(index[axis], sizes)[resolved.index(atom)])
        return None

    def cut(self, graph: Graph, atom: int, start: int, size: int) -> Graph:
        """Returns the graph with an atom cut to `size` from `start` on.

        Args:
            graph: This graph, or one that `cut` made of it.
            atom: What to cut.
            start: Where the part that stays begins.
            size: Its size.
        """
        editor = graph.edit()
        subgraph = editor.subgraph
        touched = self.tensors(atom)
        for t in dict.fromkeys(t for t, _ in touched):
            value = graph.constant(t)
            if value is not None:
                editor.fill(t, self.part(t, value, atom, start, size))
            tensor = copy.copy(subgraph.tensors[t])
            tensor.shape, tensor.shapeSignature = list(graph.tensors[t].shape), None
            for axis in (axis for other, axis in touched if other == t):
                kept = self._kept(self._dims[t][axis], atom, start, size)
                assert kept is not None, "the atom is part of it"
                tensor.shape[axis] = len(kept)
            subgraph.tensors[t] = tensor
        for op in graph.ops:
            spelt = [entry for entry in self.spelt if entry[0].index == op.index and entry[3] in touched]
            for operand in dict.fromkeys(entry[1] for entry in spelt):
                value = np.array(graph.constant(op.inputs[operand])).reshape(-1)
                for _, _, at, (t, axis) in (entry for entry in spelt if entry[1] == operand):
                    value[at] = subgraph.tensors[t].shape[axis] if value[at] >= 0 else -1
                node, old = subgraph.operators[op.index], graph.tensors[op.inputs[operand]]
                kind = subgraph.tensors[old.index].type
                node.inputs[operand] = editor.add_tensor(f"{old.name}/{size}", old.shape, kind, value)
                if op.type == "RESHAPE" and node.builtinOptions is not None:
                    node.builtinOptions = copy.copy(node.builtinOptions)
                    node.builtinOptions.newShape = [int(n) for n in value]
        return editor.graph()

    def _kept(self, atoms: tuple[int, ...], atom: int, start: int, size: int) -> np.ndarray | None:
        """Indices along a dimension that are left; None when it has nothing to do with the atom."""
        resolved = self._resolved(atoms)
        if atom not in resolved:
            return None
        sizes = [self.sizes[a] for a in resolved]
        kept = np.arange(int(np.prod(sizes))).reshape(sizes)
        for axis in (axis for axis, a in enumerate(resolved) if a == atom):
            kept = np.take(kept, range(start, start + size), axis)
        return kept.reshape(-1)

    # -- joining -------------------------------------------------------------------------------------------------------

    def shape(self, t: int) -> tuple[int, ...]:
        """Returns a tensor's shape."""
        return self.graph.tensors[t].shape

    def numbers(self, t: int) -> list[int]:
        """Returns a constant of whole numbers.

        Raises:
            ValueError: It is not constant.
        """
        value = self.graph.constant(t)
        if value is None:
            raise ValueError("not constant")
        return [int(n) for n in value.reshape(-1)]

    def join(self, first: Axis, *others: Axis) -> None:
        """Lets dimensions change together only."""
        for other in others:
            self.join_runs([first], [other])

    def join_runs(self, some: Iterable[Axis], others: Iterable[Axis]) -> None:
        """Lets two runs of dimensions, which hold the same elements in the same order, change together only."""
        left = [atom for t, axis in some for atom in self._atoms(t)[axis]]
        right = [atom for t, axis in others for atom in self._atoms(t)[axis]]
        todo = list(self._resolved(tuple(left))), list(self._resolved(tuple(right)))
        while todo[0] and todo[1]:
            (a, *_), (b, *_) = todo
            if a == b:
                pass
            elif self.sizes[a] == self.sizes[b]:
                self._bound[b] = (a,)
            else:
                large, small = (a, b) if self.sizes[a] > self.sizes[b] else (b, a)
                if self.sizes[large] % self.sizes[small]:
                    break
                # The larger one is a product that begins with the smaller one.
                rest = self._fresh(self.sizes[large] // self.sizes[small])
                self._bound[large] = (small, *rest)
            todo = list(self._resolved(tuple(todo[0]))), list(self._resolved(tuple(todo[1])))
            if todo[0][0] == todo[1][0]:
                todo = todo[0][1:], todo[1][1:]
        self._held.update(todo[0], todo[1])

    def hold(self, *axes: Axis) -> None:
        """Lets dimensions be as they are."""
        self._held.update(atom for t, axis in axes for atom in self._atoms(t)[axis])

    def _atoms(self, t: int) -> list[tuple[int, ...]]:
        if t not in self._dims:
            self._dims[t] = [self._fresh(n) for n in self.shape(t)]
        return self._dims[t]

    def _fresh(self, size: int) -> tuple[int, ...]:
        if size == 1:
            return ()  # nothing to make smaller, and no part of a product
        self.sizes[len(self.sizes)] = size
        return (len(self.sizes) - 1,)

    def _resolved(self, atoms: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            a for atom in atoms for a in (self._resolved(self._bound[atom]) if atom in self._bound else (atom,))
        )


# -- the rules ---------------------------------------------------------------------------------------------------------
# Each joins the dimensions of one op and says whether it could.


def _rule(kind: str) -> Callable[[Axes, Op], bool] | None:
    families: Sequence[tuple[frozenset[str], Callable[[Axes, Op], bool]]] = (
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


_SINGLE: Mapping[str, Callable[[Axes, Op], bool]] = {
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
