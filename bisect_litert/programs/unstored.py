"""Which results a .tflite file never holds, because the converter fuses the operators around them into one.

Three rewrites of the converter decide what fp16 has to hold: a sum divided by its length is one MEAN, exponentials
divided by their sum are one SOFTMAX, and a factor behind a linear layer or convolution goes into its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bisect_litert.programs.nodes import Node

_VIEWS = ("view", "expand", "squeeze", "unsqueeze", "clone", "alias")
_LINEAR = ("addmm", "convolution")


@dataclass(frozen=True)
class Fused:
    """Names of nodes that have no op of their own."""

    inside: frozenset[str]
    """Their results exist only inside a fused op."""
    factors: frozenset[str]
    """Their result is the fused op's; the number they multiply or divide by is nowhere in the file."""


def fused(nodes: Sequence[Node]) -> Fused:
    """Finds what the converter fuses."""
    by_name = {node.name: node for node in nodes}
    users: dict[str, list[str]] = {}
    for node in nodes:
        for source in node.inputs:
            users.setdefault(source, []).append(node.name)
    found: set[str] = set()
    factors: set[str] = set()
    for node in nodes:
        if _kind(node) == "div" and len(node.inputs) == 2:
            found.update(_softmax(node, by_name))
        elif _kind(node) in ("div", "mul") and len(node.inputs) == 1 and len(node.numbers) == 1:
            chain = _chain(node.inputs[0], by_name)
            if chain and all(len(users[name]) == 1 for name in chain) and _scales(node, by_name[chain[-1]], by_name):
                found.update(chain)
                factors.add(node.name)
    return Fused(frozenset(found), frozenset(factors))


def _softmax(node: Node, by_name: Mapping[str, Node]) -> list[str]:
    above, below = _chain(node.inputs[0], by_name), _chain(node.inputs[1], by_name)
    if not above or not below or _kind(by_name[above[-1]]) != "exp" or _kind(by_name[below[-1]]) != "sum":
        return []
    inside = _chain(by_name[below[-1]].inputs[0], by_name)
    if not inside or not _same(above[-1], inside[-1], by_name):
        return []
    return [*above, *below, *inside]


def _scales(node: Node, source: Node, by_name: Mapping[str, Node]) -> bool:
    """Whether the converter takes the factor in `node` into `source`."""
    if _kind(source) in _LINEAR:
        return True
    summed = by_name.get(source.inputs[0]) if _kind(source) == "sum" else None
    if summed is None or not node.numbers[0]:
        return False
    length = prod(summed.shape) / max(1, prod(source.shape))
    factor = node.numbers[0] if _kind(node) == "div" else 1 / node.numbers[0]
    return abs(factor / length - 1) < 1e-6


def _chain(name: str, by_name: Mapping[str, Node]) -> list[str]:
    """Returns the node and, through views, the one that computes it, which comes last; nothing for an input."""
    chain = []
    while name in by_name:
        chain.append(name)
        if _kind(by_name[name]) not in _VIEWS or not by_name[name].inputs:
            return chain
        name = by_name[name].inputs[0]
    return []


def _same(a: str, b: str, by_name: Mapping[str, Node]) -> bool:
    """Whether two nodes compute the same: the converter merges them."""
    if a == b:
        return True
    one, other = by_name.get(a), by_name.get(b)
    if one is None or other is None or (one.target, one.numbers) != (other.target, other.numbers):
        return False
    return len(one.inputs) == len(other.inputs) and all(
        _same(x, y, by_name) for x, y in zip(one.inputs, other.inputs, strict=True)
    )


def _kind(node: Node) -> str:
    return node.target.split(".")[1] if node.target.startswith("aten.") else ""
