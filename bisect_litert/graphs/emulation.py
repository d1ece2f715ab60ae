"""What an honest fp16 device would give, on the CPU: the same graph with every float tensor rounded as it is stored.

Two ways to round, since fp16 loses two different things:

- `Rounding.HALF` is fp16 itself, by a pair of CASTs: 11 significant bits *and* a range that ends at 65504 and at
  6e-8. It predicts overflow and underflow without a GPU.
- `Rounding.SIGNIFICAND` keeps the 11 bits and lifts the range. What it costs is rounding alone. A block that is far
  off in HALF and in line in SIGNIFICAND has left the range; one that is off in both has lost digits.

Neither rounds what is accumulated inside an op; `allowance` says how much that may add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from math import sqrt

import numpy as np

from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph, Op

SPLITTER = 2.0**13 + 1
"""Dekker's splitting constant for float32 (24 bits) that leaves the upper 24 - 13 = 11 bits: T. J. Dekker, "A
floating-point technique for extending the available precision", Numerische Mathematik 18 (1971)."""
SPLIT_LIMIT = 1e34
"""Above this, value * SPLITTER leaves float32."""
_PIECE = 1 << 20
"""Elements that are rounded at once."""


class Rounding(Enum):
    """Which of fp16's losses to emulate."""

    HALF = "half"
    SIGNIFICAND = "significand"


def round_array(values: np.ndarray, rounding: Rounding) -> np.ndarray:
    """Rounds a float32 array, to nearest even, and returns float32 of the same shape."""
    values = np.asarray(values, np.float32)
    if values.size > _PIECE:  # the steps below take several times what they work on
        flat, rounded = values.reshape(-1), np.empty(values.size, np.float32)
        for start in range(0, values.size, _PIECE):
            rounded[start : start + _PIECE] = round_array(flat[start : start + _PIECE], rounding)
        return rounded.reshape(values.shape)
    if rounding is Rounding.HALF:
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    kept = bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded = (kept & np.uint32(0xFFFFE000)).view(np.float32)
    # The largest floats would round to infinity; a range without end keeps them.
    return np.where(np.isfinite(rounded), rounded, values)


def emulate(graph: Graph, rounding: Rounding, tame: Collection[int] = (), only: Collection[int] | None = None) -> Graph:
    """Returns the graph with every float tensor rounded as it is written, constants and graph inputs included.

    Args:
        graph: The graph, taps and all.
        rounding: What to emulate.
        tame: Tensors known to hold nothing infinite, NaN, or above `SPLIT_LIMIT`; they are rounded with fewer ops.
        only: Round these tensors and no others; None means all.
    """
    editor = Editor(graph)
    current: dict[int, int] = {}
    """What is read in place of each tensor."""
    for tensor in graph.tensors:
        chosen = only is None or tensor.index in only
        if chosen and tensor.constant and tensor.is_float and tensor.index in graph.consumers:
            value = graph.constant(tensor.index)
            assert value is not None
            with np.errstate(over="ignore"):
                rounded = round_array(value, rounding)
            current[tensor.index] = editor.add_tensor(f"{tensor.name}/rounded", tensor.shape, _float32(), rounded)
    outputs: dict[int, int] = {}
    used = set(graph.consumers) | {port.tensor for port in graph.outputs}
    plans: dict[int, list[int]] = {-1: [port.tensor for port in graph.inputs]}
    plans.update({op.index: list(op.outputs) for op in graph.ops})
    original = list(editor.subgraph.operators)
    editor.subgraph.operators = []
    constants = (SPLITTER, SPLIT_LIMIT, -SPLIT_LIMIT) if rounding is Rounding.SIGNIFICAND else ()
    scalars = {value: _scalar(editor, value) for value in constants}
    for position in range(-1, len(original)):
        if position >= 0:
            op = original[position]
            op.inputs = [current.get(i, i) for i in op.inputs]
            editor.subgraph.operators.append(op)
        for t in plans[position]:
            if not graph.tensors[t].is_float or t not in used or (only is not None and t not in only):
                continue
            half = rounding is Rounding.HALF
            current[t] = _half(editor, t) if half else _significand(editor, t, t not in tame, scalars)
            outputs[t] = current[t]
    editor.rewire_outputs(outputs)
    return editor.graph()


def _float32() -> int:
    from ai_edge_litert import schema_py_generated as schema

    return int(schema.TensorType.FLOAT32)


def _half(editor: Editor, t: int) -> int:
    from ai_edge_litert import schema_py_generated as schema

    shape = _shape(editor, t)
    narrow = editor.add_tensor("half", shape, schema.TensorType.FLOAT16)
    wide = editor.add_tensor(f"rounded_{t}", shape, schema.TensorType.FLOAT32)
    f32, f16 = schema.TensorType.FLOAT32, schema.TensorType.FLOAT16
    editor.add_op("CAST", [t], [narrow], inDataType=f32, outDataType=f16)
    editor.add_op("CAST", [narrow], [wide], inDataType=f16, outDataType=f32)
    return wide


def _significand(editor: Editor, t: int, clip: bool, scalars: Mapping[float, int]) -> int:
    shape, f32 = _shape(editor, t), _float32()

    def op(name: str, a: int, b: int) -> int:
        out = editor.add_tensor("split", shape, f32)
        editor.add_op(name, [a, b], [out])
        return out

    x = t
    if clip:
        x = op("MAXIMUM", x, scalars[-SPLIT_LIMIT])
        x = op("MINIMUM", x, scalars[SPLIT_LIMIT])
    c = op("MUL", x, scalars[SPLITTER])
    high = op("SUB", c, op("SUB", c, x))
    # x minus its own rounding error: infinities and NaN, which have none, pass through.
    return op("SUB", t, op("SUB", x, high)) if clip else high


def _scalar(editor: Editor, value: float) -> int:
    return editor.add_tensor(f"constant_{value:g}", [1], _float32(), np.array([value], np.float32))


def _shape(editor: Editor, t: int) -> list[int]:
    shape = editor.subgraph.tensors[t].shape
    return [int(n) for n in shape] if shape is not None else []


def allowance(graph: Graph, ops: Iterable[Op]) -> float:
    """Factor on the storage-rounding error that fp16 accumulation over the block's longest sum may add, at least 1.

    Adding K terms of random sign one after the other, each partial sum s_k ~ sqrt(k) is rounded with a relative error
    of standard deviation u/sqrt(3): the variance of the result is u^2/3 * sum(k) = u^2 K^2/6 against a value of
    variance K, so u * sqrt(K/6), where rounding the stored result alone costs u/sqrt(3). Together: sqrt(1 + K/2)
    times the storage error (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", SIAM
    J. Sci. Comput. 41, 2019). Terms of one sign give a factor of the same order, sqrt(1 + K/3). Batched matmul and
    MEAN accumulate in fp32 where it was measured, but nothing promises that elsewhere.
    """
    longest = max((accumulation_length(graph, op) for op in ops), default=1)
    return sqrt(1 + longest / 2) if longest > 1 else 1.0


def accumulation_length(graph: Graph, op: Op) -> int:
    """How many products or terms one output element of `op` sums; 1 for an op that sums nothing."""
    shapes = [graph.tensors[t].shape for t in op.inputs]
    out = graph.tensors[op.outputs[0]] if op.outputs else None
    if op.type == "FULLY_CONNECTED" and len(shapes) > 1 and shapes[1]:
        return shapes[1][-1]
    if op.type in ("CONV_2D", "TRANSPOSE_CONV") and len(shapes) > 1:
        return int(np.prod(shapes[1][1:]))
    if op.type == "DEPTHWISE_CONV_2D" and len(shapes) > 1:
        return int(np.prod(shapes[1][1:3]))
    if op.type == "BATCH_MATMUL" and shapes and shapes[0] and out is not None:
        left, right = (graph.tensors[t].size for t in op.inputs[:2])
        batch = int(np.prod(out.shape[:-2])) if len(out.shape) > 2 else 1
        return max(1, round(sqrt(left * right / max(1, out.size) / max(1, batch))))
    if op.type in ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION") and shapes and out is not None:
        return shapes[0][-1] if shapes[0] else 1
    if op.type in ("SUM", "MEAN", "AVERAGE_POOL_2D") and shapes and out is not None:
        return max(1, graph.tensors[op.inputs[0]].size // max(1, out.size))
    if op.type == "CUMSUM" and shapes:
        axis = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else None
        return shapes[0][int(axis.reshape(-1)[0])] if axis is not None and shapes[0] else max(shapes[0] or (1,))
    return 4 if op.type == "RESIZE_BILINEAR" else 1
