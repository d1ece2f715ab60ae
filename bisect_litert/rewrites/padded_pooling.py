"""Average pooling with padding of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation with average pooling written so that its padding is not fused with it.

The delegate fuses the PAD before an average pooling with it, and then leaves the zeros out of the average. As a
convolution of each channel with equal weights 1 / (size of the window), or with the zeros concatenated, the average is
taken over the same numbers. Where the zeros are not to be counted, it is multiplied by the window's size over the
number of its own elements, which is known beforehand.

Limits: none.
"""


def _table(average: Callable[[Op, Traced, tuple[int, int], tuple[int, int], tuple[int, int]], Traced]) -> Any:
    """Returns what makes a table of handlers, given how the average with zeros is taken."""

    def table(fits: Callable[[Op], bool]) -> Table:
        def pool(op: Op) -> Any:
            x, padding = op.tensor("self"), _pair(op["padding"])
            if not any(padding) or op.get("ceil_mode") or op.get("divisor_override") or not fits(op) or x.ndim != 4:
                return NotImplemented
            size = _pair(op["kernel_size"])
            step = _pair(op["stride"]) if op["stride"] else size
            result = average(op, x, size, step, padding)
            if not op["count_include_pad"]:
                ones = x.values[0].new_ones(1, 1, *x.shape[-2:])
                shares = F.avg_pool2d(ones, size, step, padding, count_include_pad=True)
                result = result * op.constant((1.0 / shares).contiguous(), "one_over_share")
            op.change("the average over a padded window is taken without PAD")
            return Value(result)

        return {"avg_pool2d": pool}

    return table


def _by_convolution(
    op: Op, x: Traced, size: tuple[int, int], step: tuple[int, int], padding: tuple[int, int]
) -> Traced:
    channels = x.shape[1]
    weight = x.values[0].new_full((channels, 1, *size), 1.0 / (size[0] * size[1]))
    convolved: Traced = F.conv2d(x, op.constant(weight, "equal_weights"), None, step, padding, 1, channels)
    return convolved


def _by_concatenation(
    op: Op, x: Traced, size: tuple[int, int], step: tuple[int, int], padding: tuple[int, int]
) -> Traced:
    for axis, width in ((3, padding[1]), (2, padding[0])):
        if width:
            shape = [*x.shape[:axis], width, *x.shape[axis + 1 :]]
            zeros = op.constant(x.values[0].new_zeros(shape), f"zeros_{axis}")
            x = torch.cat([zeros, x, zeros], axis)
    pooled: Traced = F.avg_pool2d(x, size, step)
    return pooled


def _pair(value: Any) -> tuple[int, int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return (numbers[0], numbers[-1])


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that pools averages with padding."""
    for average in (_by_convolution, _by_concatenation):
        yield from by_line(region, _table(average), DOC)


REWRITE = Rewrite(
    name="padded-pooling",
    title="padded averages without PAD",
    causes=(Cause.WRONG_KERNEL, Cause.TAP_EFFECT, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="the border of a pooled image is too large by a factor; right again when an intermediate is an output",
    why="the delegate fuses the padding with the pooling and leaves the zeros out of the average",
    rewrite="a convolution of each channel with equal weights, or zeros concatenated before the pooling",
    limits="none",
    propose=propose,
)
