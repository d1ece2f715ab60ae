"""A .pt2 archive of torch.export becomes a module again: named children of the recorded classes, inputs, source lines.

torch.export.unflatten gives the children back as interpreters of their part of the graph. Here each gets the class name
it was recorded with, and lists, which are no part of a graph, become lists again, so that blocks are chosen and named
as in the module that was exported.
"""

from __future__ import annotations

import inspect
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_litert.errors import InputsError, ModelFileError
from bisect_litert.models.eager import one_line, quiet_logging
from bisect_litert.models.input_overrides import override
from bisect_litert.models.preparation import LoadedModel, assemble

if TYPE_CHECKING:
    import torch

SUFFIX = ".pt2"


def load(path: Path, inputs_path: Path | None) -> LoadedModel:
    """Reads an archive.

    Args:
        path: Written by torch.export.save.
        inputs_path: An .npz or .npy whose arrays stand in for the archive's example inputs.

    Raises:
        ModelFileError: It is missing, damaged or of another version.
        InputsError: It holds no example inputs, and none were given, or those do not fit.
    """
    import torch

    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.", hint="Give a .pt2 file that torch.export.save wrote.")
    again = "Export it again with this version: torch.export.save(torch.export.export(model, inputs), FILE)."
    if not zipfile.is_zipfile(path):
        raise ModelFileError(f"{path.name} is no .pt2 archive, or only a part of one.", hint=again)
    try:
        with warnings.catch_warnings(), quiet_logging():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
            module = torch.export.unflatten(program)
    except Exception as error:
        said = one_line(error).rstrip(".")
        if "check the warnings above" in said:  # which is torch's log of what it tried first, and is not shown
            said = "it is no archive of torch.export, or was made by another version"
        raise ModelFileError(f"{path.name} cannot be read by torch {torch.__version__}: {said}.", hint=again) from None
    _restore(module, program)
    args, kwargs = program.example_inputs or ((), {})
    notes: tuple[str, ...] = ()
    if inputs_path is not None:
        args, kwargs, notes = override(module, tuple(args), dict(kwargs), inputs_path)
    elif not args and not kwargs and program.graph_signature.user_inputs:
        raise InputsError(
            f"{path.name} holds no example inputs.",
            hint=f"Give them: --inputs FILE.npz with {', '.join(map(str, program.graph_signature.user_inputs))}.",
        )
    return replace(assemble(module, tuple(args), dict(kwargs), path.name, notes), program=program)


def _restore(module: torch.nn.Module, program: Any) -> None:
    """Gives every part its recorded class name, and the forward its parameters."""
    from torch import nn

    recorded = _recorded_classes(program)
    for name, part in list(module.named_modules()):
        part.training = False  # what the mode changes is in the graph already
        for node in part.graph.nodes if hasattr(part, "graph") else ():
            node.meta.pop("val", None)  # shapes of the trace, which cannot be copied without complaints
        if not name:
            continue
        if name not in recorded and part._modules:
            parent, _, attribute = name.rpartition(".")
            held = nn.ModuleDict(dict(part.named_children()))
            held.training = False
            setattr(module.get_submodule(parent), attribute, held)
        elif name in recorded:
            _rename(part, recorded[name])
    module.__class__ = _with_signature(type(module), recorded.get("", ""), _parameters(program))


def _recorded_classes(program: Any) -> dict[str, str]:
    """Class names by module path, as the graph's nodes carry them."""
    found: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, class_name in (node.meta.get("nn_module_stack") or {}).values():
            found.setdefault(path.split("@")[0], class_name)
    return found


def _rename(part: torch.nn.Module, class_name: str) -> None:
    from torch import nn

    package, _, name = class_name.rpartition(".")
    # Its children are repeated where they were; the forward stays the interpreter's.
    bases = (type(part), nn.Sequential) if class_name == "torch.nn.modules.container.Sequential" else (type(part),)
    part.__class__ = type(name or type(part).__name__, bases, {"__module__": package or __name__})


def _with_signature(base: type, class_name: str, names: Sequence[tuple[str, Any]]) -> type:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base.forward(self, *args, **kwargs)  # type: ignore[attr-defined]

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(name, kind) for name, kind in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    package, _, name = class_name.rpartition(".")
    return type(name or base.__name__, (base,), {"__module__": package or __name__, "forward": forward})


def _parameters(program: Any) -> list[tuple[str, Any]]:
    """Names and kinds of what the exported forward took."""
    spec = program.call_spec.in_spec
    positional, keywords = spec.children() if hasattr(spec, "children") else spec.children_specs
    count = positional.num_children
    names = [str(name) for name in program.graph_signature.user_inputs]
    if positional.num_leaves != count or not all(n.isidentifier() for n in names[:count]):
        names = [f"args_{i}" for i in range(count)]  # nested inputs have more tensors than parameters
    found = [(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names[:count]]
    given: Mapping[str, Any] | Sequence[str] = keywords.context or ()
    return found + [(str(name), inspect.Parameter.KEYWORD_ONLY) for name in given]
