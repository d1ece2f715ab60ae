"""Which module each op of a .tflite file belongs to, and the tree these modules form."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from bisect_litert.files import tensor_names
from bisect_litert.files.tensor_names import Level, Path
from bisect_litert.graphs.graph import Graph, Op

NAMED_SHARE = 0.5
"""Share of the ops that has to carry a module path for names to be worth more than op positions."""
_NUMBERED = re.compile(r"(.*?)[_.]?(\d+)")


@dataclass
class Node:
    """One module."""

    name: str
    """Dotted path, "encoder.Block_0.attn"; empty for the model itself."""
    class_name: str
    path: tuple[str, ...]
    """Keys of its levels."""
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """Whether its children are alike: it is a list, or holds one that names leave out."""
        if self.class_name == "Sequential" and self.children:
            return True
        stems = Counter(
            (child.class_name, match[1])
            for child in self.children.values()
            if (match := _NUMBERED.fullmatch(child.name.rpartition(".")[2]))
        )
        return any(count > 1 for count in stems.values())

    def below(self) -> list[Node]:
        """The node and everything below it, parents first."""
        return [self, *(node for child in self.children.values() for node in child.below())]


@dataclass(frozen=True)
class Paths:
    """The modules of a file."""

    root: Node
    of_op: dict[int, tuple[str, ...]]
    """Keys of the path of each op."""

    @property
    def nodes(self) -> list[Node]:
        """All modules but the model itself, parents first."""
        return self.root.below()[1:]

    def node_of(self, op: int) -> Node:
        """The deepest module an op belongs to."""
        node = self.root
        for key in self.of_op.get(op, ()):
            node = node.children[key]
        return node


def read_paths(graph: Graph) -> Paths | None:
    """Reads the modules off the tensor names; None when too few ops carry a path to go by."""
    ops = [op for op in graph.ops if any(t in graph.computed for t in op.outputs)]
    named = {op.index: path for op in ops if (path := _own_path(graph, op)) is not None}
    first = tensor_names.without_root(list(named.values()))
    named = {index: path[first:] for index, path in named.items()}
    if not ops or sum(bool(path) for path in named.values()) < NAMED_SHARE * len(ops):
        return None
    _fill_gaps(graph, ops, named)
    root = Node("", "", ())
    labels: dict[tuple[tuple[str, ...], str], set[str]] = defaultdict(set)
    for path in named.values():
        for depth, level in enumerate(path):
            labels[tuple(x.key for x in path[:depth]), level.label].add(level.key)
    for index in sorted(named):
        _insert(root, named[index], labels)
    return Paths(root, {index: tuple(level.key for level in path) for index, path in named.items()})


def _insert(root: Node, path: Path, labels: dict[tuple[tuple[str, ...], str], set[str]]) -> None:
    node = root
    for level in path:
        if level.key not in node.children:
            # Two siblings of one label: the list or dict they lie in is not part of the name, their class is.
            alone = len(labels[node.path, level.label]) == 1
            label = level.label if alone else _spelled(level)
            name = f"{node.name}.{label}" if node.name else label
            node.children[level.key] = Node(name, level.class_name, (*node.path, level.key))
        node = node.children[level.key]


def _spelled(level: Level) -> str:
    return level.key.rpartition(".")[2] if level.class_name else level.key.replace(".", "_")


def _own_path(graph: Graph, op: Op) -> Path | None:
    """The path in the name of what an op writes, else in that of a weight that it alone reads."""
    alone = [t for t in op.inputs if t not in graph.computed and len(graph.consumers[t]) == 1]
    for t in (*op.outputs, *alone):
        paths = tensor_names.parse(graph.tensors[t].name)
        if paths and (t in op.outputs or paths[0]):
            return paths[0]
    return None


def _fill_gaps(graph: Graph, ops: Sequence[Op], named: dict[int, Path]) -> None:
    """Ops without a path of their own get one from their neighbours: what they read, else what reads them."""
    for op in ops:
        if op.index in named:
            continue
        makers = dict.fromkeys(graph.producer[t].index for t in op.inputs if t in graph.producer)
        known = [named[i] for i in sorted(makers) if i in named]
        if len(known) == 1:
            named[op.index] = known[0]
        elif known:
            # It joins what a module computed with what lies outside of it, so it belongs to the module around both.
            named[op.index] = _common(known) or known[-1][:-1] or known[-1]
    for op in reversed(ops):
        readers = [named[r.index] for t in op.outputs for r in graph.consumers.get(t, ()) if r.index in named]
        if op.index not in named and readers:
            named[op.index] = readers[0]


def _common(paths: Sequence[Path]) -> Path:
    found: list[Level] = []
    for levels in zip(*paths, strict=False):
        if len({level.key for level in levels}) > 1:
            break
        found.append(levels[0])
    return tuple(found)
