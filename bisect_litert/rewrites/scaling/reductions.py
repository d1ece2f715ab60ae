"""Means, sums, variances, norms and extremes."""

from __future__ import annotations

from typing import Any

from bisect_litert.rewrites import arithmetic as a
from bisect_litert.rewrites.handlers import Op, Table, axes_of, handles
from bisect_litert.rewrites.scaling.telling import told
from bisect_litert.rewrites.tracing import item
from bisect_litert.rewrites.values import Value

TABLE: Table = {}


@handles(TABLE, "mean")
def _mean(op: Op) -> Any:
    if not op["self"].is_float:
        return NotImplemented
    return told(op, a.mean(op["self"], axes_of(op), keepdim=bool(op.get("keepdim"))))


@handles(TABLE, "sum")
def _sum(op: Op) -> Any:
    if not op["self"].is_float:
        return NotImplemented
    if not a.sums_fit(op["self"], axes_of(op)):
        op.change("sum is the mean times the count, since its partial sums leave the range")
    return told(op, a.total(op["self"], axes_of(op), keepdim=bool(op.get("keepdim"))))


@handles(TABLE, "amax", "amin", "max", "min")
def _extreme(op: Op) -> Any:
    x = op["self"]
    if "other" in op.operands:
        return NotImplemented
    if op.name in ("amax", "amin"):
        return Value(getattr(x.stored, op.name)(axes_of(op) or (), keepdim=op["keepdim"]), x.exponent)
    if "dim" not in op.operands:
        return Value(getattr(x.stored, op.name)(), x.exponent)
    both = getattr(x.stored, op.name)(op["dim"], keepdim=op["keepdim"])
    return [Value(item(both, 0), x.exponent), Value(item(both, 1))]


@handles(TABLE, "argmax", "argmin")
def _index(op: Op) -> Any:
    return Value(getattr(op["self"].stored, op.name)(op["dim"], keepdim=op["keepdim"]))


@handles(TABLE, "cumsum")
def _cumsum(op: Op) -> Any:
    x = op["self"]
    sums = max(float(v.abs().sum(op["dim"]).max()) for v in x.stored.values)
    from bisect_litert.rewrites.values import scale, shift_for

    x = scale(x, x.exponent + shift_for(sums, sums))
    return told(op, Value(x.stored.cumsum(op["dim"]), x.exponent))


@handles(TABLE, "var", "std")
def _var(op: Op) -> Any:
    x, axes = op["self"], axes_of(op)
    axes = tuple(range(x.stored.ndim)) if axes is None else axes
    correction = op.get("correction")
    if correction is None:
        correction = 1 if op.get("unbiased", True) else 0
    squares = spread(x, axes)
    count = 1
    for axis in axes:
        count *= x.stored.shape[axis]
    result = a.mean(squares, axes, keepdim=bool(op.get("keepdim")))
    if correction:
        result = a.multiply(result, count / (count - correction), small_matters=op.small_matters)
    return told(op, a.root(result) if op.name == "std" else result)


def spread(x: Value, axes: tuple[int, ...]) -> Value:
    """Squares of the distance from the mean."""
    return a.square(a.add(x, a.mean(x, axes, keepdim=True), subtract=True), small_matters=True)


@handles(TABLE, "linalg_vector_norm", "norm")
def _norm(op: Op) -> Any:
    x, order = op["self"], op.get("ord", op.get("p"))
    if order is not None and float(order) != 2.0:
        return NotImplemented
    squares = a.square(x, small_matters=True)
    return told(op, a.root(a.total(squares, axes_of(op), keepdim=bool(op.get("keepdim")))))


@handles(TABLE, "cosine_similarity")
def _cosine_similarity(op: Op) -> Any:
    """Both sides are normalised before they are multiplied."""
    axes, eps = (op["dim"],), op["eps"]

    def unit(x: Value) -> Value:
        length = a.root(a.total(a.square(x, small_matters=True), axes, keepdim=True))
        return a.divide(x, a.clamped(length, eps, None, small_matters=True))

    op.change("cosine_similarity normalises both sides first, by norms whose squares are stored scaled")
    return told(op, a.total(a.multiply(unit(op["x1"]), unit(op["x2"])), axes, keepdim=False))
