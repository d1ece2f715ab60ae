"""Tables of handlers: what is written instead of an ATen operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true

if TYPE_CHECKING:
    from bisect_litert.programs.nodes import Node


@dataclass(frozen=True)
class Op:
    """One operator of the exported graph, its operands as values of the new one."""

    node: Node
    name: str
    """"mul", without namespace and overload."""
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    operands: Mapping[str, Any]
    """By the schema's names ("self", "other", "dim"), defaults filled in; tensors as `Value`."""
    small_matters: bool
    """Whether a logarithm, root or divisor reads its result, so that small values have to be held."""
    saturates: bool
    """Whether its result is only read where everything under -2^14 is as good as minus infinity (a softmax)."""

    change: Callable[..., None]
    """Called as change(how, exponent=None) where the operator is written otherwise."""

    constant: Callable[[torch.Tensor, str], Traced]
    """Called as constant(tensor, name): a tensor that the new module holds."""

    def __getitem__(self, name: str) -> Any:
        return self.operands[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        """Returns an operand, or something else when the schema has none of that name."""
        return self.operands.get(name, otherwise)

    def tensor(self, name: str) -> Traced:
        """Returns an operand as it is, unscaled.

        Raises:
            CannotRewrite: fp16 cannot hold it.
        """
        value = self.operands[name]
        assert isinstance(value, Value), f"{name} of {self.name} is a tensor"
        return true(value, f"{self.name} reads a tensor that" if not self.node.source else self.node.source)


Handler = Callable[[Op], Any]
"""Returns a `Value`, or a list of them for an operator that returns several tensors."""
Table = dict[str, Handler]


def handles(table: Table, *names: str) -> Callable[[Handler], Handler]:
    """Puts a function into a table under operator names ("mul", "softmax")."""

    def put(function: Handler) -> Handler:
        for name in names:
            table[name] = function
        return function

    return put


def operands_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an operator's operands by the names of its schema."""
    found = {}
    for position, argument in enumerate(target._schema.arguments):
        if argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif position < len(args):
            found[argument.name] = args[position]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def axes_of(op: Op, key: str = "dim") -> tuple[int, ...] | None:
    """Returns an operator's axes, None for all."""
    axes = op.get(key)
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return None
    return (axes,) if isinstance(axes, int) else tuple(axes)
