"""Normalisations, taken apart into means, squares and roots."""

from __future__ import annotations

from typing import Any

from bisect_litert.rewrites import arithmetic as a
from bisect_litert.rewrites.handlers import Op, Table, handles
from bisect_litert.rewrites.scaling.telling import told
from bisect_litert.rewrites.values import Value

TABLE: Table = {}


def normalised(x: Value, axes: tuple[int, ...], eps: float, *, centre: bool = True) -> Value:
    """(x - mean) / sqrt(var + eps), or x / sqrt(mean(x^2) + eps)."""
    if centre:
        x = a.add(x, a.mean(x, axes, keepdim=True), subtract=True)
    squares = a.mean(a.square(x, small_matters=True), axes, keepdim=True)
    return a.multiply(x, a.inverse_root(a.add(squares, eps, small_matters=True)))


def _affine(x: Value, weight: Value | None, bias: Value | None, shape: list[int] | None = None) -> Value:
    if weight is not None:
        x = a.multiply(x, weight if shape is None else Value(weight.stored.reshape(*shape)))
    if bias is not None:
        x = a.add(x, bias if shape is None else Value(bias.stored.reshape(*shape)))
    return x


@handles(TABLE, "layer_norm")
def _layer_norm(op: Op) -> Any:
    axes = tuple(range(-len(op["normalized_shape"]), 0))
    op.change("layer_norm is taken apart, and its squares are stored scaled")
    return told(op, _affine(normalised(op["input"], axes, op["eps"]), op["weight"], op["bias"]))


@handles(TABLE, "rms_norm")
def _rms_norm(op: Op) -> Any:
    axes = tuple(range(-len(op["normalized_shape"]), 0))
    eps = op["eps"] if op["eps"] is not None else 1.1920928955078125e-07
    op.change("rms_norm is taken apart, and its squares are stored scaled")
    return told(op, _affine(normalised(op["input"], axes, eps, centre=False), op["weight"], None))


@handles(TABLE, "group_norm")
def _group_norm(op: Op) -> Any:
    x, groups = op["input"], op["num_groups"]
    shape = list(x.stored.shape)
    flat = Value(x.stored.reshape(shape[0], groups, -1), x.exponent)
    y = normalised(flat, (-1,), op["eps"])
    y = Value(y.stored.reshape(*shape), y.exponent)
    op.change("group_norm is taken apart, and its squares are stored scaled")
    return told(op, _affine(y, op["weight"], op["bias"], [1, shape[1], *[1] * (len(shape) - 2)]))


@handles(TABLE, "instance_norm")
def _instance_norm(op: Op) -> Any:
    x = op["input"]
    if not op["use_input_stats"]:
        return NotImplemented
    axes = tuple(range(2, x.stored.ndim))
    op.change("instance_norm is taken apart, and its squares are stored scaled")
    per_channel = [1, x.stored.shape[1], *[1] * (x.stored.ndim - 2)]
    return told(op, _affine(normalised(x, axes, op["eps"]), op["weight"], op["bias"], per_channel))


@handles(TABLE, "batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "native_batch_norm")
def _batch_norm(op: Op) -> Any:
    x = op["input"]
    per_channel = [1, x.stored.shape[1], *[1] * (x.stored.ndim - 2)]
    if op.get("running_mean") is None or op.get("training"):
        y = normalised(x, (0, *range(2, x.stored.ndim)), op["eps"])
    else:
        mean, var = (Value(op[key].stored.reshape(*per_channel)) for key in ("running_mean", "running_var"))
        scale = a.inverse_root(a.add(var, op["eps"], small_matters=True))
        y = a.multiply(a.add(x, mean, subtract=True), scale)
    op.change("batch_norm is taken apart, and its squares are stored scaled")
    result = told(op, _affine(y, op["weight"], op["bias"], per_channel))
    return result if op.name == "batch_norm" else [result]
