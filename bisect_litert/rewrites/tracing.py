"""Torch code that is recorded and computed at once.

A `Traced` stands for a tensor of the rewritten module. Plain torch code on it (`x * 2`, `torch.rsqrt(x)`, `x.amax(-1)`)
adds nodes to a graph, and each node knows the values it has in every call of the region, so shapes and ranges are at
hand while the code is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

VALUES = "values"
"""Key of a node's values in its meta: one per call of the region."""
WHY = "why"
"""Key of a node's comment."""


class Traced(fx.Proxy):
    """A tensor of the module that is being written."""

    @property
    def values(self) -> list[torch.Tensor]:
        """Its value in every call."""
        found: list[torch.Tensor] = self.node.meta[VALUES]
        return found

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        return self.values[0].shape

    @property
    def ndim(self) -> int:
        """Its rank."""
        return int(self.values[0].ndim)

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return self.values[0].dtype

    @property
    def is_constant(self) -> bool:
        """Whether it depends on no input; a converter computes it once, in fp32."""
        return bool(self.node.meta["constant"])

    if TYPE_CHECKING:

        def __add__(self, other: Any) -> Traced: ...
        def __sub__(self, other: Any) -> Traced: ...
        def __mul__(self, other: Any) -> Traced: ...
        def __truediv__(self, other: Any) -> Traced: ...
        def __getitem__(self, index: Any) -> Traced: ...

    def named(self, name: str) -> Traced:
        """Calls it `name` in the source, or a name like it where that one is taken."""
        self.node._rename(name)
        return self


class Tracer(fx.proxy.GraphAppendingTracer):
    """Adds nodes to a graph and computes them."""

    def __init__(self, calls: int) -> None:
        super().__init__(fx.Graph())
        self.calls = calls

    def proxy(self, node: fx.Node) -> Traced:
        """Returns what handlers work on."""
        return Traced(node, self)

    def place(self, kind: str, target: str, values: Sequence[Any], *, constant: bool) -> Traced:
        """Adds an input ("placeholder") or a tensor of the module ("get_attr")."""
        node = self.graph.create_node(kind, target, name=_identifier(target))
        node.meta.update({VALUES: list(values), "constant": constant})
        return self.proxy(node)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[fx.Node], fx.Proxy] | None = None,
    ) -> fx.Proxy:
        """Adds a node and computes its value in every call."""
        proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
        node = proxy.node
        node.meta[VALUES] = [self._compute(node, i) for i in range(self.calls)]
        node.meta["constant"] = all(source.meta["constant"] for source in node.all_input_nodes)
        return proxy

    @staticmethod
    def _compute(node: fx.Node, call: int) -> Any:
        def value(thing: Any) -> Any:
            return thing.meta[VALUES][call] if isinstance(thing, fx.Node) else thing

        args = map_aggregate(node.args, value)
        kwargs = map_aggregate(node.kwargs, value)
        with torch.no_grad():
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)  # type: ignore[index]
            return node.target(*args, **kwargs)  # type: ignore[operator]


def peek(function: Callable[..., Any], *operands: Any, **keywords: Any) -> list[torch.Tensor]:
    """Computes what a function of traced tensors would give, in every call, without writing it down."""
    leaves, _ = pytree.tree_flatten((operands, keywords), is_leaf=lambda x: isinstance(x, Traced))
    calls = next(len(leaf.values) for leaf in leaves if isinstance(leaf, Traced))

    def at(call: int) -> tuple[Any, Any]:
        pick: Any = pytree.tree_map(
            lambda x: x.values[call] if isinstance(x, Traced) else x,
            (operands, keywords),
            is_leaf=lambda x: isinstance(x, Traced),
        )
        return pick[0], pick[1]

    found = []
    with torch.no_grad():
        for call in range(calls):
            args, kwargs = at(call)
            found.append(function(*args, **kwargs))
    return found


def item(traced: Traced, index: int) -> Traced:
    """Returns one tensor of an operator that returns several."""
    picked: Traced = traced.tracer.create_proxy("call_function", operator.getitem, (traced, index), {})
    return picked


def _identifier(target: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in target).strip("_") or "value"
