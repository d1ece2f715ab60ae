"""Long running sums and long products, accumulated in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true
from bisect_litert.vocabulary import Cause

DOC = """The same computation with long sums accumulated in parts.

In fp16 a running sum loses every addend that is less than 2^-12 of what has been summed so far. A
cumulative sum over n elements is taken as one over blocks of about sqrt(n), and one over the blocks'
totals, which is added to each block: no number takes part in more than 2 sqrt(n) additions. A matrix
product is written as products of single elements and their SUM, which the GPU accumulates in fp32; where
those are too many, the two halves of the vectors are mixed element by element, so that what cancels between
them does so early.

Limits: products of single elements take rows * columns * n numbers of memory, for a moment. Mixed halves
help only where the two halves cancel.
"""
SHORT = 64
"""Elements of a sum that is left as it is."""
MANY = 2**23
"""Products of single elements that are still computed at once."""


def scanned(x: Traced, axis: int) -> Traced:
    """A cumulative sum in two levels."""
    shape = tuple(x.shape)
    length = shape[axis]
    size = 2 ** math.ceil(math.log2(length) / 2)
    count = math.ceil(length / size)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = x.reshape(1, before, length, after)
    if count * size != length:
        flat = F.pad(flat, (0, 0, 0, count * size - length))  # type: ignore[assignment,arg-type]
    blocks = flat.reshape(before, count, size, after).cumsum(2)
    totals = blocks[:, :, -1:]
    whole = (blocks + (totals.cumsum(1) - totals)).reshape(before, count * size, after)
    if count * size != length:
        whole = whole[:, :length]
    made: Traced = whole.reshape(*shape)
    return made


def multiplied(x: Traced, weight: Traced) -> Traced:
    """x @ weight.T as products that are summed, where those are few enough; else in another order."""
    length, rows = x.shape[-1], math.prod(x.shape[:-1])
    if rows * weight.shape[0] * length <= MANY:
        made: Traced = (x.reshape(1, rows, 1, length) * weight.reshape(1, 1, -1, length)).sum(-1)
        made = made.reshape(*x.shape[:-1], weight.shape[0])
    else:
        made = F.linear(_halves_mixed(x), _halves_mixed(weight))  # type: ignore[arg-type,assignment]
    return made


def _halves_mixed(x: Traced) -> Traced:
    """The last axis as first, middle, second, middle + 1, ..."""
    half = x.shape[-1] // 2
    flat = x.reshape(1, -1, 2, half).transpose(2, 3)
    made: Traced = flat.reshape(*x.shape)
    return made


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns handlers for the sums that `fits` picks."""

    def cumsum(op: Op) -> Any:
        x = op["self"]
        if not x.is_float or op.get("dtype") is not None or not x.stored.ndim or not fits(op):
            return NotImplemented
        axis = op["dim"] % x.stored.ndim
        if x.stored.is_constant or x.stored.shape[axis] <= SHORT:
            return NotImplemented
        op.change(f"a cumulative sum of {x.stored.shape[axis]} elements is taken in blocks")
        return Value(scanned(true(x), axis))

    def linear(op: Op) -> Any:
        x, weight, bias = op["input"], op["weight"], op["bias"]
        if x.stored.is_constant or x.stored.shape[-1] <= SHORT or x.stored.shape[-1] % 2 or not fits(op):
            return NotImplemented
        op.change(f"a product over {x.stored.shape[-1]} elements is summed in another way")
        made = multiplied(true(x), true(weight))
        return Value(made if bias is None else made + true(bias))

    def matmul(op: Op) -> Any:
        x, y = op["self"], op.get("other", op.get("mat2"))
        if (
            x.stored.is_constant
            or y.stored.ndim != 2
            or x.stored.shape[-1] <= SHORT
            or x.stored.shape[-1] % 2
            or not fits(op)
        ):
            return NotImplemented
        op.change(f"a product over {x.stored.shape[-1]} elements is summed in another way")
        return Value(multiplied(true(x), true(y).transpose(0, 1)))

    def convolution(op: Op) -> Any:
        """A convolution with a kernel of 1 is a product at every position."""
        x, weight, bias = op["input"], op["weight"], op["bias"]
        one = all(size == 1 for size in weight.stored.shape[2:])
        plain = (
            op["groups"] == 1
            and weight.stored.shape[1] % 2 == 0
            and not any(op["padding"])
            and all(step == 1 for step in op["stride"])
        )
        if not one or not plain or weight.stored.shape[1] <= SHORT or not fits(op):
            return NotImplemented
        op.change(f"a product over {weight.stored.shape[1]} channels is summed in another way")
        n, channels, *rest = x.stored.shape
        tokens = true(x).reshape(n, channels, -1).transpose(1, 2)
        made = multiplied(tokens, true(weight).reshape(-1, channels))
        made = made if bias is None else made + true(bias)
        return Value(made.transpose(1, 2).reshape(n, -1, *rest))

    return {
        "cumsum": cumsum,
        "linear": linear,
        "matmul": matmul,
        "mm": matmul,
        "conv1d": convolution,
        "conv2d": convolution,
    }


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module with a cumulative sum, or a product over many elements."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="block-sums",
    title="long sums accumulated in parts",
    causes=(Cause.PRECISION_LOSS,),
    symptom="a cumulative sum that stops growing; a long dot product off by some percent",
    why="CUMSUM, FULLY_CONNECTED and 1x1 convolutions accumulate in fp16",
    rewrite="a scan in two levels; products of single elements and their sum",
    limits="products of single elements take memory; with more than 2^23 of them only the order is another",
    propose=propose,
)
