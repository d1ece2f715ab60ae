"""ATen operators as people write them, for what a rewrite leaves as it is."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F

from bisect_litert.rewrites.handlers import Op
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true

_BINARY = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
_FUNCTIONS = {
    name: getattr(torch, name)
    for name in [
        "relu",
        "abs",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "neg",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "erf",
        "matmul",
        "bmm",
        "maximum",
        "minimum",
        "where",
        "argmax",
        "floor",
        "round",
        "log1p",
        "expm1",
        "sign",
        "cumsum",
        "isnan",
        "cat",
        "stack",
    ]
}
_FUNCTIONAL = {
    name: getattr(F, name)
    for name in [
        "linear",
        "gelu",
        "silu",
        "softplus",
        "mish",
        "hardtanh",
        "hardsigmoid",
        "hardswish",
        "leaky_relu",
        "elu",
    ]
}
_LAST = 9223372036854775807


def unchanged(op: Op) -> Traced:
    """Writes an operator down as it was, on operands as they are.

    Raises:
        CannotRewrite: fp16 cannot hold one of them.
    """

    def tensor(thing: Any) -> Any:
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(tensor, thing))
        return true(thing) if isinstance(thing, Value) else thing

    args, kwargs = tuple(map(tensor, op.args)), {key: tensor(v) for key, v in op.kwargs.items()}
    made: Traced = write(op, args, kwargs, {key: tensor(v) for key, v in op.operands.items()})
    return made


def write(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], operands: dict[str, Any]) -> Any:
    """Writes an operator down and returns what it gives.

    Args:
        op: The operator.
        args: As it was called, tensors as `Traced`.
        kwargs: Likewise.
        operands: The same by the schema's names, defaults filled in.
    """
    name, x = op.name, args[0] if args else None
    if name in _BINARY and operands.get("alpha", 1) == 1 and operands.get("rounding_mode") is None:
        return _BINARY[name](*args[:2])
    if isinstance(x, Traced):
        written = _method(name, x, operands)
        if written is not None:
            return written
    if name == "softmax" and operands.get("dtype") is None:
        return torch.softmax(x, operands["dim"])
    function = _FUNCTIONS.get(name) or _FUNCTIONAL.get(name)
    return (function or op.target)(*args, **kwargs)


def _method(name: str, x: Traced, o: dict[str, Any]) -> Any:
    if name in ("view", "reshape", "_unsafe_view"):
        return x.reshape(*(o["size"] if "size" in o else o["shape"]))
    if name == "transpose":
        return x.transpose(o["dim0"], o["dim1"])
    if name == "permute":
        return x.permute(*o["dims"])
    if name in ("unsqueeze", "flatten", "repeat", "expand", "clamp", "clamp_min", "clamp_max"):
        return getattr(x, name)(*[value for key, value in o.items() if key not in ("self", "implicit")])
    if name == "squeeze" and "dim" in o:
        return x.squeeze(o["dim"])
    if name == "slice":
        index = [slice(None)] * (o["dim"] % x.ndim)
        end = None if o["end"] in (None, _LAST) else o["end"]
        part = slice(o["start"] or None, end, None if o["step"] == 1 else o["step"])
        index.append(part)
        return x[tuple(index)]
    if name == "select":
        index = [slice(None)] * (o["dim"] % x.ndim) + [o["index"]]
        return x[tuple(index)]
    if name in ("mean", "sum", "amax", "amin") and o.get("dtype") is None and o.get("dim"):
        dim = o["dim"]
        return getattr(x, name)(tuple(dim) if isinstance(dim, (list, tuple)) else dim, keepdim=o["keepdim"])
    if name in ("split", "chunk", "split_with_sizes"):
        return getattr(x, "chunk" if name == "chunk" else "split")(*[v for k, v in o.items() if k != "self"])
    if name in ("clone", "contiguous", "detach", "alias", "dropout", "lift_fresh_copy"):
        return x
    if name in ("expand_as", "view_as", "reshape_as"):
        return x.expand(*o["other"].shape) if name == "expand_as" else x.reshape(*o["other"].shape)
    if name in ("pow", "square"):
        return x * x if name == "square" or o["exponent"] == 2 else None
    return None
