"""Runs an exported graph with every result rounded as a fp16 device would store it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.graphs.emulation import Rounding, round_array
from bisect_litert.models import eager

if TYPE_CHECKING:
    import torch


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of a floating-point type."""
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def as_array(value: torch.Tensor) -> np.ndarray:
    """Returns a float tensor as a float32 array of its own."""
    import torch

    return eager.to_numpy(value.to(torch.float32))


@dataclass(frozen=True)
class Forced:
    """What stands in for some nodes' results."""

    values: Mapping[str, np.ndarray]
    rounding: Callable[[str], Rounding | None]

    def get(self, name: str, otherwise: Any) -> Any:
        """Returns what stands in for a node's result, or the result itself."""
        import torch

        if name not in self.values:
            return otherwise
        return _rounded(torch.from_numpy(self.values[name]), self.rounding(name))


def interpreter(
    graph: Any,
    constants: Container[str],
    see: Callable[[str, Any, Any, Any], None],
    rounding: Callable[[str], Rounding | None],
    forced: Forced,
    only: Container[str] | None,
    exact: Container[str],
) -> Any:
    """Returns a torch.fx.Interpreter that rounds results as they are stored.

    Args:
        graph: The GraphModule of an exported program.
        constants: Names of the nodes that depend on no input of the model; they stay in fp32 until a node that does
            reads them.
        see: Called with each node's name, its result, and its positional and keyword operands.
        rounding: How a node's result is rounded, and the parameters, constants and numbers it reads.
        forced: What consumers read instead of a node's result.
        only: Names of the nodes to compute; None means all.
        exact: Names of nodes whose Python numbers stay as they are.
    """
    import torch
    from torch.fx.node import map_arg

    class Rounded(torch.fx.Interpreter):  # torch is imported late, so its subclass is made late
        def run_node(self, node: torch.fx.Node) -> Any:
            if node.op == "output":
                return None
            how = None if node.name in constants else rounding(node.name)
            if node.op in ("placeholder", "get_attr"):
                return _rounded(super().run_node(node), how)
            if only is not None and node.name not in only:
                return forced.get(node.name, None)

            def operand(source: torch.fx.Node) -> Any:
                value = self.env[source]
                return _rounded(value, how) if source.name in constants else value

            args, kwargs = map_arg(node.args, operand), map_arg(node.kwargs, operand)
            if how is not None and node.name not in exact and is_float(node.meta.get("val")):
                args = _round_numbers(node, args, how)
            result = _rounded(getattr(self, node.op)(node.target, args, kwargs), how)
            see(node.name, result, args, kwargs)
            return forced.get(node.name, result)

    return Rounded(graph)


_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "where")


def _round_numbers(node: torch.fx.Node, args: tuple[Any, ...], round: Rounding) -> tuple[Any, ...]:
    """Rounds the Python numbers an arithmetic operator reads: in a .tflite file they are tensors like any other."""
    name = getattr(node.target, "_opname", "")
    if name not in _ARITHMETIC and name not in ("full_like", "masked_fill", "fill"):
        return args
    rounded = tuple(_number(a, round) if type(a) in (float, int) else a for a in args)
    divisor = args[-1]
    if name == "div" and type(divisor) in (float, int) and divisor:
        factor = _number(1.0 / divisor, round)  # the converter multiplies by the reciprocal
        return (*rounded[:-1], 1.0 / factor if factor else inf)
    return rounded


def _number(value: float, round: Rounding) -> float:
    return float(round_array(np.asarray(value, np.float32), round))


def _rounded(value: Any, round: Rounding | None) -> Any:
    import torch

    if round is None:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_rounded(part, round) for part in value)
    if not is_float(value):
        return value
    if round is Rounding.HALF:
        return value.to(torch.float16).to(value.dtype)
    return torch.from_numpy(np.asarray(round_array(eager.to_numpy(value), round))).to(value.dtype)
