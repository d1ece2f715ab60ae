"""A module of the model that may be replaced, with what one eager forward showed of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bisect_litert import eager, structure
from bisect_litert.errors import BisectError
from bisect_litert.exported import ExportedModel
from bisect_litert.record import Cause
from bisect_litert.rewrites.contract import CannotRewrite

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module: its inputs, tensors cloned."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def same_form(self, other: Call) -> bool:
        """Whether both calls have inputs of the same kinds, shapes and dtypes, so that one exported graph serves
        both."""
        return bool(_form((self.args, self.kwargs)) == _form((other.args, other.kwargs)))


@dataclass(frozen=True, slots=True)
class Range:
    """The magnitudes of one value over all calls."""

    peak: float
    """Largest finite |value|; 0 when all are zero."""
    low: float
    """Smallest |value| above 0; inf when there is none."""
    total: float
    """Largest sum of magnitudes that the operator adds up to make one element; 0 when it sums nothing."""

    def joined(self, other: Range) -> Range:
        """Returns the range of both."""
        return Range(max(self.peak, other.peak), min(self.low, other.low), max(self.total, other.total))


@dataclass(frozen=True)
class Region:
    """Where a rewrite may act.

    Attributes:
        path: Module path in the model; "" for the model itself.
        module: The module there.
        calls: Its calls in one forward.
        cause: The culprit's cause.
        kind: Named sub-kind such as "underflow", else empty.
        lines: The user's lines the guilty ops come from ("model.py:41"), where known.
        ops: TensorFlow Lite types of the culprit's guilty op or region, "SQUARED_DIFFERENCE".
    """

    path: str
    module: torch.nn.Module
    calls: tuple[Call, ...]
    cause: Cause
    kind: str = ""
    lines: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    @cached_property
    def exported(self) -> ExportedModel:
        """The module on its first call's inputs as torch.export sees it, its operators as they were written.

        Raises:
            CannotRewrite: It is not called, called in different forms, or cannot be exported.
        """
        if not self.calls:
            raise CannotRewrite(f"{self.path or 'the model'} is never called")
        if not all(self.calls[0].same_form(call) for call in self.calls[1:]):
            raise CannotRewrite(f"{self.path} is called with inputs of different shapes")
        try:
            return ExportedModel(self.module, self.calls[0].args, self.calls[0].kwargs, decompose=False)
        except BisectError as error:
            raise CannotRewrite(error.message.rstrip(".")) from error

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Magnitudes of every float value by node name, inputs of the module included, over all calls."""
        found: dict[str, Range] = {}
        for call in self.calls:
            for name, measured in self._ranges_of(call).items():
                found[name] = found[name].joined(measured) if name in found else measured
        return found

    def _ranges_of(self, call: Call) -> dict[str, Range]:
        exported = self.exported.on(call.args, call.kwargs)
        found = {name: range_of(value) for name, value in exported.inputs().items()}

        def see(node: Any, result: Any, args: Any, kwargs: Any) -> None:
            for name, value in _named(node.name, result):
                found[name] = range_of(value, total=_total(node.target, value, args, kwargs))

        exported.walk(see)
        return found


def range_of(value: torch.Tensor, total: float = 0.0) -> Range:
    """Measures a float tensor; what is not finite counts neither as peak nor as low."""
    import torch

    sizes = value.detach().abs()
    sizes = sizes[torch.isfinite(sizes)]
    above = sizes[sizes > 0]
    if not above.numel():
        return Range(0.0, math.inf, total)
    return Range(float(above.max()), float(above.min()), total)


def capture(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], paths: Sequence[str], seed: int = 0
) -> dict[str, tuple[Call, ...]]:
    """Runs one eager forward and returns the calls of the modules at some paths."""
    calls: dict[str, list[Call]] = {path: [] for path in paths}
    copy = eager.copy_module(model)

    def watch(path: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls[path].append(Call(*eager.copy_inputs((args, kwargs))))

        return hook

    for path in paths:
        copy.get_submodule(path).register_forward_pre_hook(watch(path), with_kwargs=True)
    eager.call(copy, tuple(args), kwargs, seed=seed)
    return {path: tuple(seen) for path, seen in calls.items()}


def _form(value: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten(value)
    described = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
    return described, spec


def _named(name: str, result: Any) -> list[tuple[str, torch.Tensor]]:
    """A node's float tensors; those of a node that returns several as "name[0]"."""
    return [(name + label, t) for label, t in structure.leaves(result) if t.is_floating_point() and t.numel()]


def _total(target: str, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The largest sum of magnitudes behind one element of a sum, mean or product of matrices."""
    import torch

    name = target.removeprefix("aten.").partition(".")[0]
    try:
        if name in ("sum", "mean", "cumsum"):
            mean = name == "mean"
            sums = getattr(torch, "sum" if mean else name)(args[0].abs(), *args[1:], **kwargs)
            return float(sums.max())
        if name in ("linear", "matmul", "bmm", "mm", "conv1d", "conv2d", "conv3d", "addmm", "baddbmm"):
            bare = [abs(a) if isinstance(a, torch.Tensor) else a for a in args]
            function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
            return float(function(*bare, **kwargs).max())
    except (RuntimeError, TypeError, ValueError):
        pass
    return 0.0
