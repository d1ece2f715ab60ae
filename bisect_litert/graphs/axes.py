"""Which dimensions of a graph's tensors have to be of one size, and the graph with some of them made smaller.

`shape_rules.py` says what each op does to its dimensions. A RESHAPE's, SLICE's or BROADCAST_TO's constant that spells a
shape out is written anew.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np

from bisect_litert.graphs.editor import Editor
from bisect_litert.graphs.graph import Graph, Op

Axis = tuple[int, int]
"""A tensor's index, and one of its dimensions."""


class Axes:
    """The dimensions of a graph's tensors as products of atoms; tensors that share an atom change together.

    A RESHAPE merges dimensions or splits them, so a dimension is a product of atoms in row-major order:
    [batch * tokens] beside [batch, tokens].

    Args:
        graph: The graph; sizes are those it has.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes: dict[int, int] = {}
        """By atom; whoever keeps what `cut` made updates them."""
        self.spelt: list[tuple[Op, int, int, Axis]] = []
        """An op, which of its inputs spells sizes out, at which position, and the size of what."""
        self._bound: dict[int, tuple[int, ...]] = {}
        self._held: set[int] = set()
        self._dims: dict[int, list[tuple[int, ...]]] = {}

    def free(self) -> tuple[int, ...]:
        """Returns the atoms that can be made smaller."""
        held = {atom for old in self._held for atom in self._resolved((old,))}
        used = {atom for dims in self._dims.values() for atoms in dims for atom in self._resolved(atoms)}
        return tuple(sorted(used - held))

    def tensors(self, atom: int) -> tuple[Axis, ...]:
        """Returns the dimensions that an atom is part of."""
        return tuple(
            (t, axis)
            for t, dims in self._dims.items()
            for axis, atoms in enumerate(dims)
            if atom in self._resolved(atoms)
        )

    def part(self, t: int, value: np.ndarray, atom: int, start: int, size: int) -> np.ndarray:
        """Returns the part of a tensor's value that is left when an atom is cut to `size` from `start` on."""
        for axis, atoms in enumerate(self._dims.get(t, ())):
            kept = self._kept(atoms, atom, start, size)
            if kept is not None:
                value = np.take(value, kept, axis)
        return np.array(value, order="C")

    def place(self, t: int, index: Sequence[int], atom: int) -> int | None:
        """Returns where along an atom an element of a tensor lies; None when the tensor is not part of it."""
        for axis, atoms in enumerate(self._dims.get(t, ())):
            resolved = self._resolved(atoms)
            if atom in resolved:
                sizes = [self.sizes[a] for a in resolved]
                return int(np.unravel_index(index[axis], sizes)[resolved.index(atom)])
        return None

    def cut(self, graph: Graph, atom: int, start: int, size: int) -> Graph:
        """Returns the graph with an atom cut to `size` from `start` on.

        Args:
            graph: This graph, or one that `cut` made of it.
            atom: What to cut.
            start: Where the part that stays begins.
            size: Its size.
        """
        editor = Editor(graph)
        subgraph = editor.subgraph
        touched = self.tensors(atom)
        for t in dict.fromkeys(t for t, _ in touched):
            value = graph.constant(t)
            if value is not None:
                editor.fill(t, self.part(t, value, atom, start, size))
            tensor = copy.copy(subgraph.tensors[t])
            tensor.shape, tensor.shapeSignature = list(graph.tensors[t].shape), None
            for axis in (axis for other, axis in touched if other == t):
                kept = self._kept(self._dims[t][axis], atom, start, size)
                assert kept is not None, "the atom is part of it"
                tensor.shape[axis] = len(kept)
            subgraph.tensors[t] = tensor
        for op in graph.ops:
            spelt = [entry for entry in self.spelt if entry[0].index == op.index and entry[3] in touched]
            for operand in dict.fromkeys(entry[1] for entry in spelt):
                value = np.array(graph.constant(op.inputs[operand])).reshape(-1)
                for _, _, at, (t, axis) in (entry for entry in spelt if entry[1] == operand):
                    value[at] = subgraph.tensors[t].shape[axis] if value[at] >= 0 else -1
                node, old = subgraph.operators[op.index], graph.tensors[op.inputs[operand]]
                kind = subgraph.tensors[old.index].type
                node.inputs[operand] = editor.add_tensor(f"{old.name}/{size}", old.shape, kind, value)
                if op.type == "RESHAPE" and node.builtinOptions is not None:
                    node.builtinOptions = copy.copy(node.builtinOptions)
                    node.builtinOptions.newShape = [int(n) for n in value]
        return editor.graph()

    def _kept(self, atoms: tuple[int, ...], atom: int, start: int, size: int) -> np.ndarray | None:
        """Indices along a dimension that are left; None when it has nothing to do with the atom."""
        resolved = self._resolved(atoms)
        if atom not in resolved:
            return None
        sizes = [self.sizes[a] for a in resolved]
        kept = np.arange(int(np.prod(sizes))).reshape(sizes)
        for axis in (axis for axis, a in enumerate(resolved) if a == atom):
            kept = np.take(kept, range(start, start + size), axis)
        return kept.reshape(-1)

    # -- joining -------------------------------------------------------------------------------------------------------

    def shape(self, t: int) -> tuple[int, ...]:
        """Returns a tensor's shape."""
        return self.graph.tensors[t].shape

    def numbers(self, t: int) -> list[int]:
        """Returns a constant of whole numbers.

        Raises:
            ValueError: It is not constant.
        """
        value = self.graph.constant(t)
        if value is None:
            raise ValueError("not constant")
        return [int(n) for n in value.reshape(-1)]

    def join(self, first: Axis, *others: Axis) -> None:
        """Lets dimensions change together only."""
        for other in others:
            self.join_runs([first], [other])

    def join_runs(self, some: Iterable[Axis], others: Iterable[Axis]) -> None:
        """Lets two runs of dimensions, which hold the same elements in the same order, change together only."""
        left = [atom for t, axis in some for atom in self._atoms(t)[axis]]
        right = [atom for t, axis in others for atom in self._atoms(t)[axis]]
        todo = list(self._resolved(tuple(left))), list(self._resolved(tuple(right)))
        while todo[0] and todo[1]:
            (a, *_), (b, *_) = todo
            if a == b:
                pass
            elif self.sizes[a] == self.sizes[b]:
                self._bound[b] = (a,)
            else:
                large, small = (a, b) if self.sizes[a] > self.sizes[b] else (b, a)
                if self.sizes[large] % self.sizes[small]:
                    break
                # The larger one is a product that begins with the smaller one.
                rest = self._fresh(self.sizes[large] // self.sizes[small])
                self._bound[large] = (small, *rest)
            todo = list(self._resolved(tuple(todo[0]))), list(self._resolved(tuple(todo[1])))
            if todo[0][0] == todo[1][0]:
                todo = todo[0][1:], todo[1][1:]
        self._held.update(todo[0], todo[1])

    def hold(self, *axes: Axis) -> None:
        """Lets dimensions be as they are."""
        self._held.update(atom for t, axis in axes for atom in self._atoms(t)[axis])

    def hold_all(self, t: int) -> None:
        """Lets a tensor be as it is."""
        self.hold(*((t, axis) for axis in range(len(self.shape(t)))))

    def _atoms(self, t: int) -> list[tuple[int, ...]]:
        if t not in self._dims:
            self._dims[t] = [self._fresh(n) for n in self.shape(t)]
        return self._dims[t]

    def _fresh(self, size: int) -> tuple[int, ...]:
        if size == 1:
            return ()  # nothing to make smaller, and no part of a product
        self.sizes[len(self.sizes)] = size
        return (len(self.sizes) - 1,)

    def _resolved(self, atoms: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            a for atom in atoms for a in (self._resolved(self._bound[atom]) if atom in self._bound else (atom,))
        )
