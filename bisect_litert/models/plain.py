"""A model in the form that torch.export and the converter take: not compiled, nothing but tensors in and out.

Whatever is changed is changed on a copy; parameters are shared with the original.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bisect_litert.errors import ModelFileError
from bisect_litert.models import eager, structure

if TYPE_CHECKING:
    import torch

_NUMBERS_AND_WORDS = (bool, int, float, complex, str, type(None))


def refuse_script(module: torch.nn.Module) -> None:
    """Says that TorchScript is no model to test.

    Raises:
        ModelFileError: The model or a part of it is a TorchScript module.
    """
    import torch

    name = next((n for n, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    if name is not None:
        raise ModelFileError(
            f"{name or 'The model'} is a TorchScript module (torch.jit), which torch.export does not take.",
            hint="Give the Python module that it was made of, with its weights loaded.",
        )


def uncompiled(module: torch.nn.Module) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """Returns a model without torch.compile around it or its parts, and a note where there was any."""
    compiled = [name for name, part in module.named_modules() if _is_compiled(part)]
    if not compiled:
        return module, ()
    copy = eager.copy_module(_inner(module))
    for part in list(copy.modules()):
        part._modules.update({key: _inner(child) for key, child in part._modules.items() if child is not None})
    where = "" if "" in compiled else f" off {', '.join(compiled[:3])}{', ...' if len(compiled) > 3 else ''}"
    return copy, (f"torch.compile was taken{where or ' off the model'}: what it wraps is tested.",)


def _is_compiled(module: Any) -> bool:
    # By name, since its class is defined where importing it takes seconds.
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules


def _inner(module: Any) -> Any:
    while _is_compiled(module):
        module = module._modules["_orig_mod"]
    return module


def traceable(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Returns a model and inputs in which no tensor was made under torch.inference_mode: those cannot be traced."""
    import torch

    with torch.no_grad():
        known: dict[int, Any] = {id(b): b.clone() for b in module.buffers() if b.is_inference()}
        for p in module.parameters():
            if p.is_inference():
                known[id(p)] = torch.nn.Parameter(p.clone(), requires_grad=False)
        given = {label: t.clone() for label, t in structure.leaves((args, kwargs)) if t.is_inference()}
    if known:
        known.update((id(p), p) for p in module.parameters() if id(p) not in known)
        module = eager.copy_module(module, share_parameters=False, known=known)
    if given:
        args, kwargs = structure.replace((args, kwargs), given)
    return module, args, kwargs


def bound(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Makes arguments that hold no tensor (None, a flag, a number, a word) part of the model.

    A converted graph has tensors for inputs and nothing else, and the converter fails at anything else among them.

    Returns:
        The model, the arguments that are left, and a note on what became part of it.
    """
    import torch

    kept = [not _fixed(value) for value in args]
    fixed = {name: value for name, value in kwargs.items() if _fixed(value)}
    if (all(kept) and not fixed) or isinstance(module, torch.fx.GraphModule):  # a copy of one forgets its class
        return module, args, dict(kwargs), ()
    signature = inspect.signature(module.forward)
    names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    gone = {name for name, stays in zip(names, kept, strict=False) if not stays} | fixed.keys()
    left = signature.replace(parameters=[p for name, p in signature.parameters.items() if name not in gone])

    def run(inner: Callable[..., Any], *given: Any, **named: Any) -> Any:
        rest = iter(given)
        whole = [next(rest) if stays else value for value, stays in zip(args, kept, strict=True)]
        return inner(*whole, *rest, **{**named, **fixed})

    copy = eager.copy_module(module)
    wrap_forward(copy, run, left)
    said = [
        f"{names[i] if i < len(names) else f'input {i}'}={value!r}" for i, value in enumerate(args) if not kept[i]
    ] + [f"{name}={value!r}" for name, value in fixed.items()]
    note = f"{', '.join(said)}: part of the model here, since the inputs of a .tflite file are tensors."
    tensors = tuple(value for value, stays in zip(args, kept, strict=True) if stays)
    return copy, tensors, {name: value for name, value in kwargs.items() if name not in fixed}, (note,)


def _fixed(value: Any) -> bool:
    """Whether an argument is made of plain Python values alone."""
    if isinstance(value, (tuple, list)):
        return all(map(_fixed, value))
    if isinstance(value, dict):
        return all(map(_fixed, value.values()))
    return isinstance(value, _NUMBERS_AND_WORDS)


def returning_tensors(module: torch.nn.Module) -> torch.nn.Module:
    """Returns a copy that returns the tensors of what the model returns, in their order, and nothing else."""

    def run(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for _, tensor in structure.leaves(inner(*args, **kwargs)))

    copy = eager.copy_module(module)
    wrap_forward(copy, run)
    return copy


def wrap_forward(module: torch.nn.Module, run: Callable[..., Any], signature: inspect.Signature | None = None) -> None:
    """Has a module call `run(forward, *args, **kwargs)` in place of its forward.

    It gets a subclass of its own class, of the same name, instead of a wrapper around it: a wrapper would put one more
    level in front of every module path, and so into every tensor name of the converted graph.

    Args:
        module: Changed in place.
        run: What is called instead, with the forward first.
        signature: The parameters it takes, without self; None for those of the forward.
    """
    original = type(module)
    patched = vars(module).get("forward")  # some libraries set a forward on the instance
    # functools.wraps keeps the parameters, which torch.export names the graph's inputs after.
    if patched is not None:
        call: Any = functools.wraps(patched)(functools.partial(run, patched))
        if signature is not None:
            call.__signature__ = signature
        vars(module)["forward"] = call
        return

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(functools.partial(original.forward, self), *args, **kwargs)

    if signature is not None:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        forward.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()]
        )
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__}
    module.__class__ = type(original.__name__, (original,), {"forward": forward, **names})
