"""More than four axes, and repeated axes: window partition, packed heads, grouped-query attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.handlers import Op, Table, axes_of, handles
from bisect_litert.rewrites.plain import write
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true
from bisect_litert.rewrites.wide import MOST, Wide, around, copies, flat_of, permuted, shaped, together, wide
from bisect_litert.vocabulary import Cause

DOC = """The same computation with at most four axes at a time, and with copies concatenated.

The GPU refuses tensors of more than four axes, and BROADCAST_TO. A reshape to five axes changes no number
and no order, so it is left out; a permutation of many axes is a few transpositions of two blocks of axes
with what lies around them, (before, a, b, behind) to (before, b, a, behind); what runs along one axis runs
on (before, axis, behind). An axis of 1 that is expanded is concatenated from copies, which are as many
numbers as the expanded tensor has. Nothing is computed otherwise, so the result is the same bit for bit.

Limits: none but memory, which copies take.
"""
TABLE: Table = {}
_SAME_ORDER = "view reshape _unsafe_view flatten unflatten unsqueeze squeeze view_as reshape_as"
_AS_IT_IS = "clone contiguous alias detach dropout lift_fresh_copy"
_ELEMENTWISE = """
add sub rsub mul div pow square neg abs relu relu6 gelu silu sigmoid tanh exp log sqrt rsqrt reciprocal sin cos erf
clamp clamp_min clamp_max hardtanh hardsigmoid hardswish leaky_relu elu softplus mish maximum minimum where masked_fill
gt ge lt le eq ne logical_and logical_or logical_not floor round sign to _to_copy
"""


def _values(op: Op) -> list[Value]:
    found = []
    for thing in [*op.args, *op.kwargs.values()]:
        found += [v for v in (thing if isinstance(thing, (list, tuple)) else [thing]) if isinstance(v, Value)]
    return found


def _concerned(op: Op) -> bool:
    """Whether a tensor of more than four axes goes in or comes out."""
    return len(op.node.shape) > MOST or any(isinstance(v, Wide) or v.stored.ndim > MOST for v in _values(op))


def _runtime(op: Op) -> bool:
    return not all(v.stored.is_constant for v in _values(op))


@handles(TABLE, *_SAME_ORDER.split())
def _reshaped(op: Op) -> Any:
    if not _concerned(op):
        return NotImplemented
    op.change(f"{op.name} to {list(op.node.shape)} keeps the order of the numbers")
    return wide(flat_of(op.args[0]), op.node.shape)


@handles(TABLE, *_AS_IT_IS.split())
def _same(op: Op) -> Any:
    return op.args[0] if isinstance(op.args[0], Wide) else NotImplemented


@handles(TABLE, "permute", "transpose", "movedim", "swapaxes")
def _permuted(op: Op) -> Any:
    if not _concerned(op):
        return NotImplemented
    axes = torch.arange(op["self"].stored.ndim)
    mark = torch.empty(*[0] * len(axes))
    if op.name == "permute":
        order = list(op["dims"])
    elif op.name in ("transpose", "swapaxes"):
        order = axes.tolist()
        a, b = (op[k] % mark.ndim for k in (("dim0", "dim1") if op.name == "transpose" else ("axis0", "axis1")))
        order[a], order[b] = order[b], order[a]
    else:
        return NotImplemented
    op.change(f"{op.name} of {list(op['self'].stored.shape)} is done by transpositions at rank 4")
    return permuted(op["self"], order)


@handles(TABLE, "expand", "expand_as", "repeat")
def _repeated(op: Op) -> Any:
    if not _runtime(op) or not isinstance(op.args[0], Value):
        return NotImplemented
    x, wanted = op.args[0], tuple(op.node.shape)
    have = (1,) * (len(wanted) - x.stored.ndim) + tuple(x.stored.shape)
    if have == wanted:
        return wide(flat_of(x), wanted)
    op.change(f"{op.name} from {list(have)} to {list(wanted)} is a concatenation of copies")
    for axis, (old, new) in enumerate(zip(have, wanted, strict=True)):
        if old == new:
            continue
        three = shaped(x, (math.prod(have[:axis]), old, math.prod(have[axis + 1 :])))
        have = (*have[:axis], new, *have[axis + 1 :])
        x = wide(copies(three, new // old, 1), have)
    return x


@handles(TABLE, "repeat_interleave")
def _interleaved(op: Op) -> Any:
    times, axis = op.get("repeats"), op.get("dim")
    if not isinstance(times, int) or axis is None or not _runtime(op):
        return NotImplemented
    three, before, after = around(op["self"], axis)
    op.change(f"each row is concatenated {times} times")
    wanted = (*before, three.shape[1] * times, *after)
    four = three.reshape(three.shape[0] * three.shape[1], 1, three.shape[2])
    return wide(copies(four, times, 1), wanted)


@handles(TABLE, "select", "slice")
def _picked(op: Op) -> Any:
    x, axis = op["self"], op["dim"]
    if not isinstance(x, Wide):
        return NotImplemented
    three, _, _ = around(x, axis)
    op.change(f"{op.name} along axis {axis} of {list(x.stored.shape)} is done at rank 3")
    if op.name == "select":
        at = op["index"] % three.shape[1]
        return wide(three[:, at : at + 1], op.node.shape)
    start, end, step = op["start"] or 0, op["end"], op["step"]
    length = three.shape[1]
    part = slice(*slice(start, end, step).indices(length))
    return wide(three[:, part.start : part.stop : part.step], op.node.shape)


@handles(TABLE, "unbind", "split", "split_with_sizes", "chunk")
def _parts(op: Op) -> Any:
    x, axis = op["self"], op["dim"]
    if not isinstance(x, Wide):
        return NotImplemented
    three, before, after = around(x, axis)
    results = [torch.empty(three.shape[1]) for _ in range(1)]
    sizes = [1] * three.shape[1]
    if op.name != "unbind":
        wanted = op.get("split_size", op.get("split_sizes", op.get("chunks")))
        sizes = [len(p) for p in getattr(results[0], op.name)(wanted)]
    op.change(f"{op.name} along axis {axis} of {list(x.stored.shape)} is done at rank 3")
    found, start = [], 0
    for size in sizes:
        shape = (*before, *(() if op.name == "unbind" else (size,)), *after)
        found.append(wide(three[:, start : start + size], shape))
        start += size
    return found


@handles(TABLE, "cat", "stack")
def _joined(op: Op) -> Any:
    if not _concerned(op):
        return NotImplemented
    axis, shape = op["dim"] % len(op.node.shape), op.node.shape
    parts = []
    for part in op["tensors"]:
        size = 1 if op.name == "stack" else part.stored.shape[axis]
        parts.append(shaped(part, (math.prod(shape[:axis]), size, math.prod(shape[axis + 1 :]))))
    op.change(f"{op.name} to {list(shape)} is done at rank 3")
    return wide(torch.cat(parts, 1), shape)


@handles(TABLE, *_ELEMENTWISE.split())
def _elementwise(op: Op) -> Any:
    tensors = _values(op)
    if not _concerned(op):
        return NotImplemented
    shapes = together([v.stored.shape for v in tensors], op.node.shape)
    rank = max(map(len, shapes))
    if rank > MOST:
        return NotImplemented
    if any(v.stored.is_constant for v in tensors):  # a constant is read whole at rank 4 only
        shapes = [[s[0], *[1] * (MOST - rank), *s[1:]] for s in shapes]
    flats = {id(v): shaped(v, s) for v, s in zip(tensors, shapes, strict=True)}

    def flat(thing: Any) -> Any:
        return flats.get(id(thing), thing)

    args = tuple(map(flat, op.args))
    kwargs = {key: flat(v) for key, v in op.kwargs.items()}
    result = write(op, args, kwargs, {key: flat(v) for key, v in op.operands.items()})
    op.change(f"{op.name} of {list(op.node.shape)} is done with {rank} axes")
    return wide(result, op.node.shape)


@handles(TABLE, "softmax", "_softmax", "sum", "mean", "amax", "amin", "cumsum")
def _along(op: Op) -> Any:
    x, axes = op["self"], axes_of(op)
    if not isinstance(x, Wide) or axes is None or op.get("dtype") is not None:
        return NotImplemented
    axes = tuple(sorted(axis % x.stored.ndim for axis in axes))
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        return NotImplemented
    shape = x.stored.shape
    sizes = [math.prod(part) for part in (shape[: axes[0]], shape[axes[0] : axes[-1] + 1], shape[axes[-1] + 1 :])]
    if sizes[2] == 1:
        sizes.pop()
    three = shaped(x, sizes)
    op.change(f"{op.name} along {list(axes)} of {list(shape)} is done at rank {len(sizes)}")
    if "softmax" in op.name:
        return wide(torch.softmax(three, 1), op.node.shape)
    if op.name == "cumsum":
        return wide(torch.cumsum(three, 1), op.node.shape)
    return wide(getattr(three, op.name)(1, keepdim=True), op.node.shape)


@handles(TABLE, "matmul", "bmm")
def _multiplied(op: Op) -> Any:
    x, y = op["self"], op.get("other", op.get("mat2"))
    if not _concerned(op):
        return NotImplemented
    batch = op.node.shape[:-2]
    if any(tuple(v.stored.shape[:-2]) != tuple(batch) for v in (x, y)):
        return NotImplemented
    op.change(f"{op.name} of {list(op.node.shape)} is done with one batch axis")
    x, y = (shaped(v, (1, math.prod(batch), *v.stored.shape[-2:])) for v in (x, y))
    return wide(torch.matmul(x, y), op.node.shape)


@handles(TABLE, "linear")
def _linear(op: Op) -> Any:
    x = op["input"]
    if not isinstance(x, Wide):
        return NotImplemented
    weight, bias = (None if op[key] is None else true(op[key]) for key in ("weight", "bias"))
    flat = shaped(x, (-1, x.stored.shape[-1]))
    return wide(F.linear(flat, weight, bias), op.node.shape)  # type: ignore[arg-type]


@handles(TABLE, "layer_norm")
def _layer_norm(op: Op) -> Any:
    x, shape = op["input"], tuple(op["normalized_shape"])
    if not isinstance(x, Wide):
        return NotImplemented
    weight, bias = (None if op[key] is None else true(op[key]) for key in ("weight", "bias"))
    flat = shaped(x, (-1, *shape))
    return wide(F.layer_norm(flat, shape, weight, bias, op["eps"]), op.node.shape)  # type: ignore[arg-type]


@handles(TABLE, "group_norm")
def _group_norm(op: Op) -> Any:
    """What a converter makes of it repeats the statistics of a group; arithmetic need not."""
    x, groups = op.tensor("input"), op["num_groups"]
    if x.is_constant:
        return NotImplemented
    shape = tuple(x.shape)
    rest = [*shape[2:], 1, 1][:2] if len(shape) < 5 else [-1, shape[-1]]
    d = x.reshape(shape[0] * groups, shape[1] // groups, *rest)
    d = d - d.mean((1, 2, 3), keepdim=True)
    y = (d * torch.rsqrt((d * d).mean((1, 2, 3), keepdim=True) + op["eps"])).reshape(*shape)
    channels = (1, shape[1], *[1] * (len(shape) - 2))
    if op["weight"] is not None:
        y = y * op.tensor("weight").reshape(*channels)
    if op["bias"] is not None:
        y = y + op.tensor("bias").reshape(*channels)
    op.change("group_norm is taken apart at rank 4, so that its statistics are not expanded")
    return wide(y, shape)


@handles(TABLE, "scaled_dot_product_attention")
def _attention(op: Op) -> Any:
    q, k, v, mask = op["query"], op["key"], op["value"], op.get("attn_mask")
    if not _concerned(op) or mask is not None or op.get("enable_gqa"):
        return NotImplemented
    if len({tuple(x.stored.shape[:-2]) for x in (q, k, v)}) != 1:
        return NotImplemented
    four = [shaped(x, (-1, *x.stored.shape[-3:])) for x in (q, k, v)]
    kept: dict[str, Any] = {key: op[key] for key in ("is_causal", "scale") if op.get(key)}
    made: Traced = F.scaled_dot_product_attention(*four, **kept)  # type: ignore[assignment]
    op.change(f"attention of {list(q.stored.shape)} is done with one batch axis")
    return wide(made, op.node.shape)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module with tensors of five or more axes, or with expanded ones."""
    replacement = rewrite_graph(region, TABLE, DOC, title="at most four axes, and copies concatenated")
    if replacement is not None:
        yield replacement


REWRITE = Rewrite(
    name="rank-four",
    title="at most four axes, and copies concatenated",
    causes=(Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="RESHAPE, TRANSPOSE or SLICE refused with a dimension count above 4; BROADCAST_TO refused",
    why="the delegate knows tensors of four axes at most, and no BROADCAST_TO",
    rewrite="keep the numbers in order at rank 4 and transpose two blocks of axes at a time; torch.cat([x] * n)",
    limits="copies take memory, as the expanded tensor does",
    propose=propose,
    upstream="google-ai-edge/LiteRT#9191",
)
