"""From an op of the .tflite file to the user's line: torch operators are matched by module and by value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bisect_litert.errors import BisectError
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.graphs.owners import Owners
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.nodes import Node
from bisect_litert.record import Culprit
from bisect_litert.taps.fingerprints import Fingerprints
from bisect_litert.taps.tapper import same_value
from bisect_litert.vocabulary import Cause

CLOSE = 1e-3
"""Relative L2 difference up to which an op and a torch operator hold one value. Values of one block are told apart
easily; the tolerance has to cover what fp32 loses inside it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an op comes from."""

    module: str = ""
    source: str = ""
    code: str = ""
    excerpt: str = ""
    operator: str = ""
    """PyTorch's name of it, "aten.mul.Tensor"."""
    node: str = ""
    """Its name in the exported graph."""


class OpSources(Protocol):
    """Tells where ops come from."""

    def places(self, ops: Sequence[Op], block: str) -> dict[int, Place]:
        """Finds module and line of each op of a block."""
        ...

    def first_lost(self, block: str) -> Place | None:
        """Finds what the conversion changed first inside a block; None when that cannot be told."""
        ...


@dataclass
class Sources:
    """Looks up ops.

    Args:
        load: Exports the model; called once, and only when an op is looked up.
        graph: The converted graph.
        values: CPU values of its tensors, by index.
        modules: All module paths of the model.
    """

    load: Callable[[], ExportedModel]
    graph: Graph
    values: Mapping[int, np.ndarray]
    modules: Sequence[str]
    _owners: Owners = field(init=False)
    _model: ExportedModel | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _values: dict[str, dict[str, np.ndarray]] = field(default_factory=dict, init=False)
    _near: dict[str, Fingerprints[str]] = field(default_factory=dict, init=False)
    """Of those values, by module."""
    _all: Fingerprints[int] | None = field(default=None, init=False)
    """Of the graph's values."""

    def __post_init__(self) -> None:
        self._owners = Owners(self.modules)

    def model(self) -> ExportedModel | None:
        """Returns the exported model; None when it cannot be exported."""
        if self._model is None and not self._failed:
            try:
                self._model = self.load()
            except BisectError:
                self._failed = True
        return self._model

    def places(self, ops: Sequence[Op], block: str) -> dict[int, Place]:
        """Finds module and line of each op of a block.

        An op whose value no torch operator has lies inside one that was taken apart; it gets the line of the next op
        in its way that has one.
        """
        module = block.split("@")[0]
        nodes = self._nodes(module)
        found: dict[int, Node] = {}
        for op in ops:
            node = self._match(op, nodes, module)
            if node is not None:
                found[op.index] = node
        places = {}
        for op in ops:
            name = self.graph.tensors[op.outputs[0]].name if op.outputs else ""
            owner = self._owners.module_of(name, module)
            matched = found.get(op.index)
            if matched is not None and matched.module in self._named(name, module):
                owner = matched.module
            node = matched or self._ahead(op, ops, found, nodes, owner)
            places[op.index] = self._place(owner, node)
        return places

    def node_of(self, culprit: Culprit) -> str:
        """Returns the name of the torch operator that a culprit's op comes from, in the exported graph; "" when
        unknown."""
        op = next((op for op in self.graph.ops if op.index == culprit.op), None)
        if op is None:
            lost = self.first_lost(culprit.block) if culprit.cause is Cause.CONVERSION else None
            return lost.node if lost else ""
        of_block = [o for o in self.graph.ops if o.index in {r.index for r in culprit.ops}] or [op]
        return self.places(of_block, culprit.block)[op.index].node

    def first_lost(self, block: str) -> Place | None:
        """Finds the first torch operator of a block whose value the .tflite file no longer has."""
        module = block.split("@")[0]
        nodes = self._nodes(module)
        held = {n.name: self._held(value) for n, value in nodes}
        for node, _ in nodes:
            reads = [n for n in node.inputs if n in held]
            if not held[node.name] and (not reads or any(held[n] for n in reads)):
                return self._place(node.module, node)
        return None

    def _held(self, value: np.ndarray) -> bool:
        if self._all is None:
            self._all = Fingerprints(self.values)
        return any(same_value(value, self.values[t], CLOSE) for t in self._all.near(value, CLOSE))

    def _place(self, owner: str, node: Node | None) -> Place:
        if node is None:
            return Place(owner)
        return Place(owner or node.module, node.source, node.code, node.excerpt(), node.target, node.name)

    def _nodes(self, module: str) -> list[tuple[Node, np.ndarray]]:
        """The torch operators inside a module, or all of them for what lies in none, with their values."""
        model = self.model()
        if model is None:
            return []

        def inside(node: Node) -> bool:
            return not module or module.startswith("(") or any(w.split("@")[0] == module for w in node.within)

        if module not in self._values:
            self._values[module] = model.values(keep=inside)
            self._near[module] = Fingerprints(self._values[module])
        values = self._values[module]
        return [(n, values[n.name]) for n in model.nodes() if n.name in values and not n.constant]

    def _match(self, op: Op, nodes: Sequence[tuple[Node, np.ndarray]], block: str) -> Node | None:
        value = self.values.get(op.outputs[0]) if op.outputs else None
        if value is None or value.dtype.kind != "f":
            return None
        name = self.graph.tensors[op.outputs[0]].name
        owner, named = self._owners.module_of(name, block), self._named(name, block)
        near = set(self._near[block].near(value, CLOSE)) if nodes else ()
        fits = [n for n, v in nodes if n.name in near and same_value(v, value, CLOSE)]
        # Reshapes and identities hold the value as well; the operator that made it comes first.
        fits.sort(key=lambda n: (n.module != owner, n.module not in named))
        return fits[0] if fits else None

    def _named(self, name: str, block: str) -> set[str]:
        """All modules that a tensor's name carries; alike ops of several are named together, and the value tells which
        of them it is."""
        return {self._owners.module_of(part, block) for part in name.split(";;")}

    @staticmethod
    def _ahead(
        op: Op,
        ops: Sequence[Op],
        found: Mapping[int, Node],
        nodes: Sequence[tuple[Node, np.ndarray]],
        owner: str,
    ) -> Node | None:
        reached = set(op.outputs)
        for later in ops:
            if later.index > op.index and reached.intersection(later.inputs):
                reached.update(later.outputs)
                if later.index in found:
                    return found[later.index]
        return next((n for n, _ in nodes if n.module == owner), None)
