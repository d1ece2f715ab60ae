"""Which modules of a model are its blocks: globs over module paths, a sensible default, and a list to choose from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bisect_litert.errors import BlockSelectionError, InputsError
from bisect_litert.globs import nearest, translate
from bisect_litert.models import eager, structure

if TYPE_CHECKING:
    import torch

ROOT = "(model)"
"""How the model itself is called where a module path is wanted."""


@dataclass(frozen=True)
class Block:
    """One selected module."""

    name: str
    """Module path; `ROOT` for the model itself."""
    class_name: str


@dataclass(frozen=True)
class BlockRow:
    """One module that is called, for choosing blocks from."""

    name: str
    class_name: str
    calls: int
    shapes: tuple[str, ...]
    """The first call's output tensors: "1x16x64", "[1] 1x4 int64", "scalar"."""
    selected: bool


class Runnable(Protocol):
    """A model with inputs; `model_file.LoadedModel` is one."""

    @property
    def module(self) -> torch.nn.Module:
        """The model."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional inputs."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword inputs."""


def select(module: torch.nn.Module, patterns: Sequence[str] = ()) -> tuple[Block, ...]:
    """Returns the blocks that any of the patterns matches, in module order.

    A module under two paths is listed once, under the first. Containers without a forward (ModuleList) are never called
    and so are no blocks.

    Args:
        module: The model.
        patterns: Globs over module paths: `*` and `?` stay within one level, `**` crosses levels, `[ab]` and `{a,b}`
            work. Without any: the repeated children (of ModuleList, ModuleDict, Sequential; the outermost such level of
            each branch) and, beside them, the children that contain no such container, without those that compute
            nothing of their own (dropout, parametrizations); the model itself when it has no children.

    Raises:
        BlockSelectionError: A pattern that matches no block.
    """
    paths = _paths(module)
    if not patterns:
        names = dict.fromkeys(paths[id(part)][0] for _, part in _default(module, "", set()))
        chosen = set(names) or {ROOT}
    else:
        chosen = set()
        for pattern in patterns:
            chosen |= _matching(module, paths, pattern)
    named = ((paths[id(part)][0], part) for part in module.modules())
    return tuple(Block(name, type(part).__name__) for name, part in named if name in chosen)


def list_blocks(loaded: Runnable, patterns: Sequence[str] = ()) -> tuple[BlockRow, ...]:
    """Runs one eager forward and returns a row for every module that is called, parents first, in execution order.

    Raises:
        BlockSelectionError: A pattern that matches no block.
        InputsError: The forward fails on these inputs.
    """
    selected = {block.name for block in select(loaded.module, patterns)}
    module = eager.copy_module(loaded.module)
    started: list[str] = []
    calls: dict[str, int] = {}
    shapes: dict[str, tuple[str, ...]] = {}
    names = _paths(module)

    def before(part: torch.nn.Module, _: Any) -> None:
        started.append(names[id(part)][0])

    def after(part: torch.nn.Module, _: Any, output: Any) -> None:
        name = names[id(part)][0]
        calls[name] = calls.get(name, 0) + 1
        shapes.setdefault(name, tuple(_shape(label, tensor) for label, tensor in structure.leaves(output)))

    classes = {}
    for part in module.modules():
        classes[names[id(part)][0]] = type(part).__name__
        part.register_forward_pre_hook(before)
        part.register_forward_hook(after)
    try:
        eager.call(module, loaded.args, loaded.kwargs)
    except Exception as error:
        raise InputsError(
            f"The model's forward fails on these inputs: {eager.one_line(error)}.",
            hint="Fix the inputs or the model.",
            detail=eager.user_traceback(error),
        ) from None
    return tuple(
        BlockRow(name, classes[name], calls[name], shapes[name], name in selected)
        for name in dict.fromkeys(started)
        if name in calls
    )


def module_at(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """Returns the submodule a block's name stands for."""
    return module if name == ROOT else module.get_submodule(name)


def _paths(module: torch.nn.Module) -> dict[int, list[str]]:
    """Returns every path of every module, the first first, by the module's id."""
    paths: dict[int, list[str]] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        paths.setdefault(id(part), []).append(name or ROOT)
    return paths


def _default(module: torch.nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields the default blocks: a cut through the module tree that leaves no part of it out.

    Module lists are opened; so is any module that has a repeated container somewhere below it, and then its other
    children are blocks as well, because what lies beside the repeated part (embeddings, pooler) would else be blamed on
    its neighbours.
    """
    if id(module) in seen:
        return
    seen.add(id(module))
    repeated = _is_container(module)
    for name, child in _parts(module):
        below = f"{path}.{name}" if path else name
        if not _is_callable(child):
            yield from _default(child, below, seen)
        elif _hands_on(child):
            continue
        elif repeated or not _holds_container(child):
            yield below, child
        else:
            yield from _default(child, below, seen)


def _parts(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The children through which data flows; a parametrization makes a weight of weights, in containers of its own."""
    from torch.nn.utils import parametrize

    weights = parametrize.is_parametrized(module)
    return [(name, child) for name, child in module.named_children() if not (weights and name == "parametrizations")]


def _holds_container(module: torch.nn.Module) -> bool:
    return _is_container(module) or any(_holds_container(child) for _, child in _parts(module))


def _hands_on(module: torch.nn.Module) -> bool:
    """Whether a module returns what it is given: what it returns is the block's before it."""
    from torch import nn

    return isinstance(module, (nn.Identity, nn.modules.dropout._DropoutNd)) and not module.training


def _is_container(module: torch.nn.Module) -> bool:
    """Whether a module holds repeated children; an empty one repeats nothing."""
    from torch import nn

    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and len(module) > 0


def _is_callable(module: torch.nn.Module) -> bool:
    """Whether a module has a forward of its own; ModuleList, ModuleDict and ParameterList have none."""
    from torch import nn

    return "forward" in vars(module) or type(module).forward is not nn.Module.forward


def _matching(module: torch.nn.Module, paths: dict[int, list[str]], pattern: str) -> set[str]:
    expression = re.compile(re.escape(ROOT) if pattern == ROOT else translate(pattern))
    hit = [
        part
        for part in module.modules()
        if any(expression.fullmatch(path) and (path != ROOT or pattern == ROOT) for path in paths[id(part)])
    ]
    blocks = {paths[id(part)][0] for part in hit if _is_callable(part)}
    if blocks:
        return blocks
    if hit:
        name = paths[id(hit[0])][0]
        raise BlockSelectionError(
            f"{pattern!r} matches only {name}, a {type(hit[0]).__name__} that is never called itself.",
            hint=f'Select what it holds: --blocks "{name}.*".',
        )
    known = [path for part in module.modules() if _is_callable(part) for path in paths[id(part)]]
    near = nearest(pattern, known)
    listed = f"Nearest: {', '.join(near)}. " if near else ""
    raise BlockSelectionError(
        f"No module of {type(module).__name__} matches {pattern!r}.",
        hint=f"{listed}List all: bisect-litert blocks MODEL",
    )


def _shape(label: str, tensor: torch.Tensor) -> str:
    import torch

    words = [label] if label else []
    words.append("x".join(str(size) for size in tensor.shape) or "scalar")
    if tensor.dtype != torch.float32:
        words.append(str(tensor.dtype).removeprefix("torch."))
    return " ".join(words)
