"""Which operators of the exported model stand for a culprit, from the guilty one to its block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.nodes import Node

MAX_STEPS = 2000
"""Operators; nobody reads a source of more."""
_IN_BETWEEN = "(output)"


@dataclass(frozen=True)
class Suspect:
    """Where to cut."""

    block: str
    """Name of the block's call."""
    class_name: str
    module: str
    """Deepest module that owns the guilty op; empty when unknown."""
    operator: str
    """Name of the exported node it comes from; empty when unknown."""
    whole: bool = False
    """Whether the fault may need the model's own outputs, all of them."""


def node_sets(suspect: Suspect, model: ExportedModel, blocks: Sequence[str]) -> Iterable[tuple[str, frozenset[str]]]:
    """Yields sets of operators, from small to large, each with what to call it."""
    nodes = {n.name: n for n in model.nodes()}
    block = suspect.block
    flow = _flow(block, model, blocks)
    strict = frozenset(n.name for n in nodes.values() if block in n.within) or flow
    called = f"{block} ({suspect.class_name})" if suspect.class_name else block
    found: dict[frozenset[str], str] = {}
    guilty = nodes.get(suspect.operator)
    if guilty is not None:
        found.setdefault(frozenset({guilty.name}), f"the operator {guilty.target}")
    calls = {w for name in flow | strict for w in nodes[name].within if w.split("@")[0] == suspect.module}
    if guilty is not None:
        calls &= set(guilty.within)
    if len(calls) == 1:
        (call,) = calls
        own = frozenset(n.name for n in nodes.values() if call in n.within)
        kind = next((nodes[n].module_class for n in own if nodes[n].module == suspect.module), "")
        found.setdefault(own, f"{call} ({kind})" if kind else call)
    found.setdefault(strict, called)
    found.setdefault(flow, f"{called}, with what runs right before it" if flow > strict else called)
    for names, what in sorted(found.items(), key=lambda item: len(item[0])):
        if names and len(names) <= MAX_STEPS:
            yield what, names


def _flow(block: str, model: ExportedModel, blocks: Sequence[str]) -> frozenset[str]:
    """The operators between a block's results and other blocks' results, as the .tflite file's ops are shared out."""
    nodes = {n.name: n for n in model.nodes()}
    calls = set(blocks)

    def owner(node: Node) -> str:
        return next((w for w in reversed(node.within) if w in calls), "")

    around = {w for n in nodes.values() if block in n.within for w in n.within[: n.within.index(block)]}
    users: dict[str, list[Node]] = {}
    for node in nodes.values():
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    returned = set(model.outputs)
    if block == _IN_BETWEEN or not any(block in n.within for n in nodes.values()):
        ends = [n for n in nodes.values() if n.name in returned and not owner(n)]
    else:
        ends = [
            n
            for n in nodes.values()
            if block in n.within
            and (n.name in returned or any(block not in user.within for user in users.get(n.name, ())))
        ]
    found: set[str] = set()
    todo = [n.name for n in ends]
    while todo:
        name = todo.pop()
        reached = nodes.get(name)
        if reached is None or name in found or owner(reached) not in ("", block, *around):
            continue
        found.add(name)
        todo += reached.inputs
    return frozenset(found)
