"""How large an operator's values get: peaks, what its sums add up to, and what is too small for fp16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from bisect_litert.programs.nodes import Node
from bisect_litert.programs.rounded_graph import is_float

if TYPE_CHECKING:
    import torch

SMALLEST = 2.0**-24
"""Smallest positive fp16 number; at or below half of it a value becomes zero."""
_LINEAR = ("addmm", "mm", "bmm", "convolution", "cumsum", "sum")
_MEANS = ("mean",)


@dataclass(frozen=True)
class Magnitude:
    """A size and the operator that has it."""

    value: float
    node: Node | None = None
    """None when there is none, or for an input of the model."""


@dataclass
class Extremes:
    """The largest and smallest of what was included so far."""

    peak: Magnitude = field(default_factory=lambda: Magnitude(0.0))
    largest_sum: Magnitude = field(default_factory=lambda: Magnitude(0.0))
    largest_squares: Magnitude = field(default_factory=lambda: Magnitude(0.0))
    smallest: Magnitude = field(default_factory=lambda: Magnitude(nan))

    def include(self, other: Extremes) -> None:
        """Takes over what is more extreme in `other`."""
        self.peak = max(self.peak, other.peak, key=_size)
        self.largest_sum = max(self.largest_sum, other.largest_sum, key=_size)
        self.largest_squares = max(self.largest_squares, other.largest_squares, key=_size)
        known = [m for m in (self.smallest, other.smallest) if not isnan(m.value)]
        self.smallest = min(known, key=_size, default=self.smallest)


def measure(
    nodes: Mapping[str, Node], node: Node | None, result: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Extremes:
    """Returns the extremes of one fp32 result.

    Args:
        nodes: All nodes by name, to recognise a sum of squares.
        node: The operator; None for an input of the model.
        result: What it gave.
        args: What it read.
        kwargs: What it read by keyword.
    """
    import torch

    size = result.detach().abs()
    size = size[torch.isfinite(size)]
    found = Extremes()
    if size.numel():
        found.peak = Magnitude(float(size.max()), node)
        small = size[(size > 0) & (size <= SMALLEST / 2)]
        if small.numel():
            found.smallest = Magnitude(float(small.min()), node)
    if node is not None and (total := _summed(node, args, kwargs)):
        found.largest_sum = Magnitude(total, node)
        if _reads_squares(nodes, node):
            found.largest_squares = Magnitude(total, node)
    return found


def _summed(node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Returns the largest sum of magnitudes: the operator itself, on the absolute values of what it reads."""
    import torch

    kind = node.target.split(".")[1] if node.target.startswith("aten.") else ""
    if kind not in _LINEAR and kind not in _MEANS:
        return 0.0
    operator = torch.ops.aten
    for part in node.target.split(".")[1:]:
        operator = getattr(operator, part)
    own = tuple(_absolute(arg) for arg in args)
    total = operator(*own, **kwargs)
    count = own[0].numel() / max(1, total.numel()) if kind in _MEANS else 1
    total = total[torch.isfinite(total)]
    return float(total.max()) * count if total.numel() else 0.0


def _absolute(value: Any) -> Any:
    import torch

    if not is_float(value):
        return value
    return torch.where(torch.isfinite(value), value.abs(), 0.0)


def _reads_squares(nodes: Mapping[str, Node], node: Node) -> bool:
    source = nodes.get(node.inputs[0]) if node.inputs else None
    if source is None:
        return False
    squared = source.target.startswith("aten.mul.") and len(source.inputs) == 1
    return squared or (source.target.startswith("aten.pow.Tensor_Scalar") and source.numbers == (2.0,))


def _size(magnitude: Magnitude) -> float:
    return magnitude.value
