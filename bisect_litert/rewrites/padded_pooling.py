"""Average pooling with padding of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F

from bisect_litert.record import Cause
from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.values import Value

DOC = """The same computation with zeros put around a tensor before it is pooled.

Average pooling with padding is fused with the padding on the GPU, and the zeros are then left out of the average.
Padding first and pooling without padding is the same average over the same windows. Where the zeros are not to be
counted, each average is multiplied by the share of its window that is no padding, inverted, which is known beforehand.

Limits: none.
"""


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns a handler for the poolings that `fits` picks."""

    def pool(op: Op) -> Any:
        x, padding = op.tensor("self"), _pair(op["padding"])
        if not any(padding) or op.get("ceil_mode") or op.get("divisor_override") or not fits(op):
            return NotImplemented
        size = _pair(op["kernel_size"])
        step = _pair(op["stride"]) if op["stride"] else size
        around = (padding[1], padding[1], padding[0], padding[0])
        result = F.avg_pool2d(F.pad(x, around), size, step)
        if not op["count_include_pad"]:
            ones = x.values[0].new_ones(1, 1, *x.shape[-2:])
            shares = F.avg_pool2d(F.pad(ones, around), size, step)
            result = result * op.constant((1.0 / shares).contiguous(), "one_over_share")
        op.change("zeros are put around a tensor before it is averaged")
        return Value(result)

    return {"avg_pool2d": pool}


def _pair(value: Any) -> tuple[int, int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return (numbers[0], numbers[-1])


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that pools averages with padding."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="padded-pooling",
    title="zeros around a tensor before it is averaged",
    causes=(Cause.WRONG_KERNEL, Cause.TAP_EFFECT, Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="the border of a pooled image is too large by a factor; right again when an intermediate is an output",
    why="the delegate fuses the padding with the pooling and leaves the zeros out of the average",
    rewrite="F.pad, then average pooling without padding; counts of the border's own elements as a constant factor",
    limits="none",
    propose=propose,
)
