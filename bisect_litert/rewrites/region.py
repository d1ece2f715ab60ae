"""A module of the model that may be replaced, with what one eager forward showed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bisect_litert.errors import BisectError
from bisect_litert.models import eager
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.rewrites.contract import CannotRewrite
from bisect_litert.vocabulary import Cause

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
            exported = ExportedModel(self.module, self.calls[0].args, self.calls[0].kwargs, decompose=False)
            exported.decompose({})  # nothing taken apart, nothing in place
        except BisectError as error:
            raise CannotRewrite(error.message.rstrip(".")) from error
        # Writing into an input may be seen outside or not; torch's own result tells, which is compared anyway.
        allowed = ("USER_OUTPUT", "USER_INPUT_MUTATION")
        if any(s.kind.name not in allowed for s in exported.program.graph_signature.output_specs):
            raise CannotRewrite(f"{self.path or 'the model'} changes its own buffers")
        return exported


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
