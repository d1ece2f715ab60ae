"""Bilinear sampling of an image at points that are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import by_line
from bisect_litert.rewrites.handlers import Op, Table
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value
from bisect_litert.vocabulary import Cause

DOC = """The same computation with bilinear sampling written as two weighted sums.

grid_sample is converted to index arithmetic at rank 5, which the GPU refuses. The weight of row h for a point at height
y is max(0, 1 - |y - h|): 1 on the row, 0 from one row further on, and 0 for all rows outside the image. So the columns'
weights of all points are a matrix that the image is multiplied by, and the rows' weights are multiplied to what comes
out and summed over the rows.

Limits: channels * height * points numbers are held for a moment, and height * width products are made for a point
where grid_sample makes four. Bilinear, with zeros or the border around.
"""


def place(share: Traced, length: int, aligned: bool) -> Traced:
    """From [-1, 1] to elements."""
    return (share + 1.0) * ((length - 1) / 2) if aligned else (share + 1.0) * (length / 2) - 0.5


def sampled(op: Op, x: Traced, grid: Traced, aligned: bool, border: bool) -> Traced:
    """x (N, C, H, W) at the points of a grid (N, h, w, 2)."""
    n, channels, height, width = x.shape
    points = grid.shape[1] * grid.shape[2]

    def weights(which: int, length: int) -> Traced:
        one = grid[:, :, :, which : which + 1].reshape(n, 1, 1, points)
        at = place(one, length, aligned)
        if border:
            at = at.clamp(0.0, float(length - 1))
        numbers = torch.arange(length, dtype=x.dtype).reshape(1, 1, length, 1)
        made: Traced = torch.relu(1.0 - torch.abs(at - op.constant(numbers, f"numbers_to_{length}")))  # type: ignore
        return made

    rows, columns = weights(1, height), weights(0, width)
    # (N, 1, C * H, W) @ (N, 1, W, points)
    along = torch.matmul(x.reshape(n, 1, channels * height, width), columns)  # type: ignore[arg-type]
    if n == 1:
        # A converter would make a product of unequal ranks of it, (1, C, H, W) @ (W, points), which the GPU gets wrong.
        along = along.clamp(min=torch.finfo(along.dtype).min)  # type: ignore[operator]
    total: Any = (along.reshape(n, channels, height, points) * rows).sum(2)
    made: Traced = total.reshape(n, channels, grid.shape[1], grid.shape[2])
    return made


def table(fits: Callable[[Op], bool]) -> Table:
    """Returns a handler for the sampling that `fits` picks."""

    def sample(op: Op) -> Any:
        x, grid = op.tensor("input"), op.tensor("grid")
        if x.ndim != 4 or op["interpolation_mode"] != 0 or op["padding_mode"] not in (0, 1) or not fits(op):
            return NotImplemented
        op.change("grid_sample is two weighted sums, over columns and over rows")
        return Value(sampled(op, x, grid, bool(op["align_corners"]), op["padding_mode"] == 1))

    return dict.fromkeys(["grid_sampler", "grid_sampler_2d"], sample)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module that samples an image at computed points."""
    yield from by_line(region, table, DOC)


REWRITE = Rewrite(
    name="grid-sampling",
    title="bilinear sampling as two weighted sums",
    causes=(Cause.REJECTED, Cause.CPU_FALLBACK),
    symptom="RESHAPE, SLICE or GATHER_ND refused in grid_sample",
    why="the converter writes grid_sample as index arithmetic at rank 5",
    rewrite="max(0, 1 - |y - h|) as the weights of rows and columns, a matrix product and a sum",
    limits="height * width products for a point instead of four; bilinear, zeros or border",
    propose=propose,
)
