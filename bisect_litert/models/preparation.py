"""A module and its example inputs, normalised and checked: what can serve as a reference, and what cannot."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.errors import InputsError, ModelFileError, UnfitReferenceError
from bisect_litert.models import plain, structure
from bisect_litert.models.eager import a_core_spared, copy_module
from bisect_litert.record import InputInfo

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run."""

    module: torch.nn.Module
    """In eval mode."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str
    """File name or spec, without folders."""
    notes: tuple[str, ...] = ()
    """Sentences on what was changed or assumed."""
    path: Path | None = None
    """The file that defines it; never written to a record."""
    program: Any = None
    """The torch.export program that the module was made of; None for a module of the user's own."""


def prepare(module: Any, inputs: Any, *, label: str = "") -> LoadedModel:
    """Normalises the inputs, puts a model that is in train mode into eval (on a copy), and checks that both are usable.

    Args:
        module: The model.
        inputs: A tensor, a tuple or list of positional arguments, or a mapping of keyword arguments. Numpy arrays
            become tensors.
        label: How reports call the model; its class name if empty.

    Raises:
        ModelFileError: `module` is not an nn.Module.
        InputsError: The inputs do not fit the forward's parameters.
        UnfitReferenceError: NaN, infinite or unsupported values or dtypes.
    """
    module = check_module(module, "The model")
    args, kwargs = normalise(inputs)
    return assemble(module, args, kwargs, label or type(module).__name__)


def assemble(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], label: str, notes: tuple[str, ...] = ()
) -> LoadedModel:
    """Does what `prepare` does for inputs that are normalised already."""
    plain.refuse_script(module)
    module, compiled = plain.uncompiled(module)
    check_signature(module, args, kwargs)
    with a_core_spared():
        check_weights(module)
        check_inputs(module, args, kwargs)
    module, args, kwargs = plain.traceable(module, args, kwargs)
    module, args, kwargs, fixed = plain.bound(module, args, kwargs)
    module, more = _in_eval_mode(module)
    return LoadedModel(module, args, kwargs, label, (*notes, *compiled, *fixed, *more))


def check_module(value: Any, what: str) -> torch.nn.Module:
    """Returns `value` if it is a module.

    Raises:
        ModelFileError: It is something else; `what` names it in the message.
    """
    import torch

    if isinstance(value, torch.nn.Module):
        return value
    hint = "Give an instance of torch.nn.Module; wrap a function in a module whose forward calls it."
    if isinstance(value, Mapping):
        hint = "This looks like a state dict: build the module and call its load_state_dict with it."
    elif isinstance(value, type) and issubclass(value, torch.nn.Module):
        hint = f"Give an instance: {value.__name__}(...)."
    elif type(value).__name__ == "ExportedProgram":
        hint = "Give the module that was exported, or call .module() on the exported program."
    raise ModelFileError(f"{what} is a {_kind(value)}, not a torch.nn.Module.", hint=hint)


def normalise(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns positional and keyword arguments for the forms in which people write inputs.

    Raises:
        InputsError: None of those forms.
    """
    import torch

    hint = "Give a tensor, a tuple of positional arguments, or a dict of keyword arguments."
    if isinstance(inputs, (torch.Tensor, np.ndarray)):
        return (_as_tensor(inputs),), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(_as_tensor(value) for value in inputs), {}
    if isinstance(inputs, Mapping):
        wrong = [key for key in inputs if not isinstance(key, str)]
        if wrong:
            raise InputsError(f"The inputs are a dict with the key {wrong[0]!r}, which is not a name.", hint=hint)
        return (), {key: _as_tensor(value) for key, value in inputs.items()}
    raise InputsError(f"The inputs are a {_kind(inputs)}.", hint=hint)


def parameters_of(module: torch.nn.Module) -> inspect.Signature | None:
    """Returns the forward's signature without self; None where Python cannot tell."""
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return None


def check_signature(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Binds the inputs to the forward's parameters.

    Raises:
        InputsError: They do not fit.
    """
    signature = parameters_of(module)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        bare = signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        given = [f"{len(args)} by position"] if args else []
        given += [", ".join(kwargs) + " by name"] if kwargs else []
        raise InputsError(
            f"The inputs do not fit {type(module).__name__}.forward{bare}: {error}.",
            hint=f"Change the inputs to what forward takes; given: {' and '.join(given) or 'none'}.",
        ) from None


def named_inputs(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Returns every input tensor with the name forward gives it: "x", "extra[1]", "states[0]['h']"."""
    signature = parameters_of(module)
    try:
        bound = dict(signature.bind(*args, **kwargs).arguments) if signature else None
    except TypeError:
        bound = None
    if signature is None or bound is None:
        bound = {**{f"input {i}": value for i, value in enumerate(args)}, **kwargs}
    named: list[tuple[str, torch.Tensor]] = []
    for name, value in bound.items():
        spread = signature is not None and name in signature.parameters
        if spread and signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:  # type: ignore[union-attr]
            named += [(f"{key}{label}", t) for key, part in value.items() for label, t in structure.leaves(part)]
        else:
            named += [(f"{name}{label}", t) for label, t in structure.leaves(value)]
    return named


def describe_inputs(loaded: LoadedModel) -> list[InputInfo]:
    """Returns name, shape and range of every input tensor."""
    found = []
    for name, tensor in (
        *((f"{i}{label}", t) for i, value in enumerate(loaded.args) for label, t in structure.leaves(value)),
        *((f"{key}{label}", t) for key, value in loaded.kwargs.items() for label, t in structure.leaves(value)),
    ):
        value = tensor.detach().cpu().numpy()
        low, high = (float(value.min()), float(value.max())) if value.size else (nan, nan)
        found.append(InputInfo(name, tuple(value.shape), str(value.dtype), low, high))
    return found


def check_weights(module: torch.nn.Module) -> None:
    """Checks parameters and buffers.

    Raises:
        UnfitReferenceError: A dtype or device the reference cannot use, no values yet, or NaN among them; -inf is fine
            (masks).
    """
    import torch

    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if torch.nn.parameter.is_lazy(tensor):
                raise UnfitReferenceError(
                    f"The {kind} {name} has no shape yet (a lazy module).",
                    hint="Run the model once on its inputs in the model file, before handing it over.",
                )
            _check_dtype(f"The {kind} {name}", tensor)
            if tensor.is_floating_point() and bool(tensor.isnan().any()):
                raise UnfitReferenceError(
                    f"The {kind} {name} holds NaN ({_count(tensor.isnan())}).",
                    hint="Load or initialise the weights before testing; torch's own result would be NaN.",
                )


def check_inputs(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks the input tensors.

    Raises:
        UnfitReferenceError: A dtype or device the reference cannot use, NaN or +inf. -inf is fine (an additive mask).
    """
    for name, tensor in named_inputs(module, args, kwargs):
        _check_dtype(f"The input {name}", tensor)
        if not tensor.is_floating_point():
            continue
        for word, bad in (("NaN", tensor.isnan()), ("infinity", tensor.isposinf())):
            if bool(bad.any()):
                raise UnfitReferenceError(
                    f"The input {name} holds {word} ({_count(bad)}).",
                    hint="Give finite inputs (only -inf, as in attention masks, is taken).",
                )


def _check_dtype(what: str, tensor: torch.Tensor) -> None:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_complex():
        raise UnfitReferenceError(
            f"{what} is {dtype}; LiteRT has no complex numbers.",
            hint="Keep real and imaginary parts in two float32 tensors (torch.view_as_real).",
        )
    if tensor.is_quantized or (tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64)):
        raise UnfitReferenceError(
            f"{what} is {dtype}; the reference needs float32.",
            hint="Cast to float32 for the reference: model.float(), and .float() on the inputs.",
        )
    if tensor.device.type == "meta":
        raise UnfitReferenceError(
            f"{what} has no values (it is on the meta device).", hint="Load the weights before testing."
        )
    if tensor.device.type != "cpu":
        raise UnfitReferenceError(
            f"{what} is on {tensor.device}; the reference runs on the CPU.",
            hint="Move it: model.cpu(), and .cpu() on the inputs.",
        )


def _in_eval_mode(module: torch.nn.Module) -> tuple[torch.nn.Module, tuple[str, ...]]:
    training = [name for name, part in module.named_modules() if part.training]
    if not training:
        return module, ()
    if "" in training:
        note = "The model was in train mode; it is tested in eval mode (no dropout, running statistics)."
    else:
        shown = ", ".join(training[:3]) + (", ..." if len(training) > 3 else "")
        note = f"Parts of the model were in train mode ({shown}); all of it is tested in eval mode."
    return copy_module(module).eval(), (note,)


def _as_tensor(value: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _count(bad: torch.Tensor) -> str:
    return f"{int(bad.sum())} of {bad.numel()} elements"


def _kind(value: Any) -> str:
    return "class" if isinstance(value, type) else type(value).__name__
