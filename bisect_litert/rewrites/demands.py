"""What readers demand of a value: that its small numbers are held, or only what is not far below its largest."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import fx

_SMALL = {
    "log": ("self",),
    "log2": ("self",),
    "log10": ("self",),
    "rsqrt": ("self",),
    "reciprocal": ("self",),
    "div": ("other",),
}
"""Operators, and which of their operands a small number makes large."""
_MOVES = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "expand",
        "flatten",
        "slice",
        "clone",
        "contiguous",
    ]
)
"""Operators that hand on an operand's numbers."""
_CARRY = _MOVES | {
    "add",
    "sub",
    "mul",
    "div",
    "clamp",
    "clamp_min",
    "clamp_max",
    "mean",
    "sum",
    "relu",
    "abs",
    "maximum",
    "minimum",
    "sqrt",
    "exp",
    "pow",
    "square",
    "neg",
    "expand_as",
    "select",
    "cat",
    "stack",
    "linalg_vector_norm",
    "norm",
    "amax",
    "_unsafe_view",
    "where",
    "masked_fill",
    "matmul",
    "bmm",
}
"""Operators whose small results come of small operands."""


class Demands:
    """Reads a graph backwards.

    Args:
        graph: Functional ATen operators.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    @cached_property
    def small(self) -> frozenset[str]:
        """Nodes whose small values have to be held: a logarithm, a root or a divisor reads them."""
        found: set[str] = set()
        for node in reversed(self._graph.nodes):
            if node.op != "call_function":
                continue
            name = _name(node)
            negative = name == "pow" and isinstance(node.args[1], (int, float)) and node.args[1] < 0
            roles = ("self",) if negative else _SMALL.get(name, ())
            for role in roles:
                source = node.args[0 if role == "self" else 1]
                if isinstance(source, fx.Node):
                    found.add(source.name)
            if node.name in found and name in _CARRY:
                found.update(source.name for source in node.all_input_nodes)
        return frozenset(found)

    @cached_property
    def saturating(self) -> frozenset[str]:
        """Nodes that only a softmax reads, itself or through sums and reshapes: what lies far under the maximum counts
        for nothing."""
        found: set[str] = set()
        for node in reversed(self._graph.nodes):
            if node.op != "call_function" or not node.users:
                continue
            if all(self._absorbs(user, node, found) for user in node.users):
                found.add(node.name)
        return frozenset(found)

    @staticmethod
    def _absorbs(user: fx.Node, node: fx.Node, found: set[str]) -> bool:
        name = _name(user)
        if name in ("softmax", "_softmax", "_safe_softmax"):
            return True
        if name == "scaled_dot_product_attention":
            mask = user.args[3] if len(user.args) > 3 else user.kwargs.get("attn_mask")
            return mask is node
        return user.name in found and (name in _MOVES or name in ("add", "masked_fill", "where", "to", "_to_copy"))


def _name(node: fx.Node) -> str:
    target: Any = node.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else ""
