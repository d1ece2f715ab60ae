"""The tensors inside a block's nested return value: list them under stable labels, put others in their place.

The order is the one `torch.export` flattens values in (torch.utils._pytree: dicts by insertion, dataclasses by field),
because the converted graph's outputs come in that order.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def leaves(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns every tensor inside `value` with its label, in pytree order.

    Args:
        value: A tensor, or tuples, namedtuples, lists, dicts, dataclasses, Hugging Face outputs and registered pytree
            nodes around tensors. Anything else in there (None, numbers, unregistered cache objects) is ignored.

    Returns:
        Pairs of label and tensor. Labels read as Python would: "" for a plain tensor, "[1]", ".hidden", "['key'][0]".
    """
    return list(_walk(value, "", ()))


def only_tensors(value: Any) -> bool:
    """Whether torch.export sees nothing but tensors in a value: no None, number or container that it does not know."""
    import torch
    from torch.utils import _pytree

    return all(isinstance(leaf, torch.Tensor) for leaf in _pytree.tree_leaves(value))


def replace(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns `value` with the tensors at the given labels replaced; the original stays as it is.

    Containers on the way to a replaced tensor are new objects, everything else is shared with the original.

    Args:
        value: As for `leaves`.
        tensors: New tensors by label.

    Raises:
        KeyError: A label that `leaves` does not list for this value.
    """
    unknown = set(tensors) - {label for label, _ in leaves(value)}
    if unknown:
        raise KeyError(f"no tensor at {', '.join(sorted(map(repr, unknown)))}")
    return _rebuild(value, "", tensors) if tensors else value


def _walk(value: Any, label: str, outer: tuple[int, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield label, value
        return
    if id(value) in outer:  # a container that holds itself
        return
    for key, child in _children(value):
        yield from _walk(child, label + key, (*outer, id(value)))


def _rebuild(value: Any, label: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return tensors.get(label, value)
    changed: dict[str, Any] = {}
    for key, child in _children(value):
        # A label's prefix may belong to a sibling (".a" and ".ab"): rebuild only what really holds a replaced tensor.
        below = label + key
        if any(path in tensors for path, _ in _walk(child, below, ())):
            changed[key] = _rebuild(child, below, tensors)
    return _with_children(value, changed) if changed else value


def _children(value: Any) -> list[tuple[str, Any]]:
    """Returns the labelled parts of a container; nothing for what is not one."""
    if isinstance(value, dict):
        # A Hugging Face output is a dict and a dataclass at once; its items are its fields that are not None.
        named = dataclasses.is_dataclass(value)
        return [(f".{key}" if named else f"[{key!r}]", child) for key, child in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value) if hasattr(value, f.name)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=True)]
    if isinstance(value, (tuple, list)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    node = _registered(value)
    return [] if node is None else [(f"[{i}]", child) for i, child in enumerate(node[0](value)[0])]


def _with_children(value: Any, changed: Mapping[str, Any]) -> Any:
    """Returns a copy of the container `value` with some of its parts changed."""
    parts = [(key, changed.get(key, child)) for key, child in _children(value)]
    duplicate: Any = copy.copy(value)
    if isinstance(value, dict):
        names = dict(zip(value, (child for _, child in parts), strict=True))
        for key, child in names.items():
            duplicate[key] = child
        return duplicate
    if dataclasses.is_dataclass(value):
        for key, child in changed.items():
            object.__setattr__(duplicate, key[1:], child)  # works on frozen dataclasses too
        return duplicate
    children = [child for _, child in parts]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*children)
    if isinstance(value, tuple):
        return type(value)(children)
    if isinstance(value, list):
        duplicate[:] = children
        return duplicate
    node = _registered(value)
    assert node is not None, "only containers have parts"
    return node[1](children, node[0](value)[1])


def _registered(value: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]] | None:
    """Returns how a type that somebody registered with torch's pytree is taken apart and put together, if it is one."""
    from torch.utils import _pytree

    node = _pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else (node.flatten_fn, node.unflatten_fn)
