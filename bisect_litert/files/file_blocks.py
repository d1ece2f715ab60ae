"""The blocks of a .tflite file, which has no modules any more: from the paths in its tensor names, else from its ops.

A block's outputs are the tensors that one of its ops writes and an op of another block reads, or that the graph
returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bisect_litert.errors import BlockSelectionError
from bisect_litert.files import op_ranges
from bisect_litert.files.op_paths import Node, Paths, read_paths
from bisect_litert.globs import nearest, translate
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.readings import Tap
from bisect_litert.request import BlockLine
from bisect_litert.taps.tapper import Layout
from bisect_litert.vocabulary import TapOrigin

_RANGE = re.compile(r"ops? (\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class FileBlock:
    """One module of the file, or one stretch of its ops."""

    name: str
    class_name: str
    ops: tuple[int, ...]
    """Positions in the graph."""


@dataclass(frozen=True)
class FileBlocks:
    """What can be selected in a file."""

    graph: Graph
    paths: Paths | None
    """None when names tell nothing."""
    blocks: tuple[FileBlock, ...]
    """In the order of the graph, parents first."""
    default: frozenset[str]

    def select(self, patterns: Sequence[str]) -> tuple[FileBlock, ...]:
        """Returns the blocks that any of the patterns matches; the default ones without patterns.

        Args:
            patterns: Globs over module paths, or "ops 40-60".

        Raises:
            BlockSelectionError: A pattern matches nothing, or ops that do not exist.
        """
        if not patterns:
            return tuple(block for block in self.blocks if block.name in self.default)
        chosen: dict[str, FileBlock] = {}
        for pattern in patterns:
            match = _RANGE.fullmatch(pattern)
            if match:
                block = self._range(int(match[1]), int(match[2] or match[1]))
                chosen[block.name] = block
                continue
            expression = re.compile(translate(pattern))
            hits = {block.name: block for block in self.blocks if expression.fullmatch(block.name)}
            if not hits:
                near = nearest(pattern, [block.name for block in self.blocks])
                listed = f"Nearest: {', '.join(near)}. " if near else ""
                raise BlockSelectionError(
                    f"No block of the file matches {pattern!r}.",
                    hint=f"{listed}List all: bisect-litert blocks MODEL; or give positions: --blocks 'ops 0-9'.",
                )
            chosen.update(hits)
        return tuple(sorted(chosen.values(), key=lambda b: (b.ops[0], -len(b.ops))))

    def _range(self, first: int, last: int) -> FileBlock:
        count = len(self.graph.ops)
        if not first <= last < count:
            raise BlockSelectionError(
                f"The file has no ops {first} to {last}: it has {count}, from 0 to {count - 1}.",
                hint="Give two positions within that, the smaller one first.",
            )
        return FileBlock(op_ranges.name(first, last), "", tuple(range(first, last + 1)))


def read_blocks(graph: Graph) -> FileBlocks:
    """Reads the blocks off a graph."""
    paths = read_paths(graph)
    if paths is None:
        stretches = tuple(
            FileBlock(op_ranges.name(first, last), _types(graph.ops[first : last + 1]), tuple(range(first, last + 1)))
            for first, last in op_ranges.split(graph)
        )
        return FileBlocks(graph, None, stretches, frozenset(b.name for b in stretches))
    own: dict[tuple[str, ...], list[int]] = {}
    for index, path in sorted(paths.of_op.items()):
        for depth in range(1, len(path) + 1):
            own.setdefault(path[:depth], []).append(index)
    blocks = [FileBlock(node.name, node.class_name, tuple(own[node.path])) for node in paths.nodes]
    default = frozenset(node.name for node in _default(paths.root))
    return FileBlocks(graph, paths, tuple(sorted(blocks, key=lambda b: (b.ops[0], -len(b.ops)))), default)


def _default(node: Node) -> Iterator[Node]:
    """A cut through the tree, as `blocks.select` makes it: repeated children, and beside them what holds none."""
    if len(node.children) == 1 and not node.repeats:
        (only,) = node.children.values()
        yield from _default(only) if only.children else iter((only,))
        return
    for child in node.children.values():
        if node.repeats or not any(part.repeats for part in child.below()):
            yield child
        else:
            yield from _default(child)


def _types(ops: Sequence[Op]) -> str:
    """What a stretch of ops is made of, where that is short enough to say."""
    types = list(dict.fromkeys(op.type for op in ops))
    return ", ".join(types) if len(types) < 3 else ""


def taps_of(graph: Graph, blocks: Sequence[FileBlock]) -> tuple[Tap, ...]:
    """Returns the outputs of every call of every block, in the order of the graph.

    A block whose ops lie before and behind another one's was called twice.
    """
    found: list[tuple[int, int, Tap]] = []
    for block in blocks:
        calls = _calls(graph, frozenset(block.ops))
        for call, ops in enumerate(calls, 1):
            tensors = _leaving(graph, ops)
            key = block.name if call == 1 else f"{block.name}@{call}"
            end = max((graph.producer[t].index for t in tensors), default=0)
            for position, t in enumerate(tensors):
                label = f"[{position}]" if len(tensors) > 1 else ""
                found.append((end, len(block.ops), _tap(graph, t, key, block, call, label)))
    return tuple(tap for _, _, tap in sorted(found, key=lambda entry: entry[:2]))


def list_lines(found: FileBlocks, selected: Sequence[FileBlock]) -> tuple[BlockLine, ...]:
    """Returns a line per block, for choosing from."""
    names = {block.name for block in selected}
    rows = {block.name: block for block in (*found.blocks, *selected)}
    lines = []
    for block in rows.values():
        taps = taps_of(found.graph, [block])
        shapes = tuple(
            " ".join(w for w in (tap.label, "x".join(map(str, tap.shape)) or "scalar") if w)
            for tap in taps
            if tap.call == 1
        )
        calls = max((tap.call for tap in taps), default=1)
        lines.append(BlockLine(block.name, block.class_name, calls, shapes, block.name in names))
    return tuple(lines)


def _calls(graph: Graph, own: frozenset[int]) -> list[list[int]]:
    """Parts a block's ops where the data leaves the block and comes back."""
    inside: dict[int, int] = {}
    """By op of the block: its call."""
    behind: dict[int, int] = {}
    """By op: the latest call it follows from."""
    for op in graph.ops:
        makers = [graph.producer[t].index for t in op.inputs if t in graph.producer]
        latest = max((behind.get(m, 0) for m in makers), default=0)
        if op.index in own:
            inside[op.index] = max([1, *(inside[m] if m in own else behind.get(m, 0) + 1 for m in makers)])
            latest = max(latest, inside[op.index])
        behind[op.index] = latest
    numbers = sorted(set(inside.values()))
    return [[i for i, call in inside.items() if call == number] for number in numbers]


def _leaving(graph: Graph, ops: Sequence[int]) -> list[int]:
    """Float tensors that the ops write and others read, or the graph returns."""
    own, returned = set(ops), {port.tensor for port in graph.outputs}
    return [
        t
        for i in ops
        for t in graph.ops[i].outputs
        if graph.tensors[t].is_real
        and graph.tensors[t].size
        and t in graph.computed
        and (t in returned or any(reader.index not in own for reader in graph.consumers.get(t, ())))
    ]


def _tap(graph: Graph, t: int, key: str, block: FileBlock, call: int, label: str) -> Tap:
    shape = graph.tensors[t].shape
    return Tap(
        key=key + label,
        block=key,
        module=block.name,
        class_name=block.class_name,
        call=call,
        label=label,
        shape=shape,
        dtype="float32",
        origin=TapOrigin.GRAPH,
        tensor=t,
        layout=Layout(shape, tuple(range(len(shape)))),
    )
