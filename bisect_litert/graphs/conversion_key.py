"""What a conversion depends on, as one key: the program that torch.export sees, its weights, and the versions.

The exported program is what the converter itself starts from, with every Python number, branch and shape settled. A key
made of source files or of module classes would miss what they read; this one misses nothing the converter sees.
"""

from __future__ import annotations

import hashlib
import operator
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PACKAGES = ("bisect-litert", "torch", "litert-torch", "litert-converter", "ai-edge-litert", "jax", "torchao")
"""What the result may change with; only some of them are always there."""


def conversion_key(program: torch.export.ExportedProgram) -> str | None:
    """Returns the key of converting a program; None where it holds something whose content is not known here."""
    import torch

    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            data = part if isinstance(part, bytes) else str(part).encode()
            digest.update(f"{len(data)}:".encode())  # so that no two lists of parts read alike
            digest.update(data)

    add(*(f"{name} {_version(name)}" for name in PACKAGES), platform.python_version(), platform.machine())
    add(Path(__file__).with_name("conversion.py").read_bytes())  # how the converter is called
    add(program.graph_signature, program.call_spec, program.range_constraints)
    tensors: dict[str, object] = {**program.state_dict, **program.constants}
    for path, part in program.graph_module.named_modules():
        if type(part) is torch.nn.Module:
            continue  # only there to give names to what it holds
        if not isinstance(part, torch.fx.GraphModule):
            return None
        add(path)
        for node in part.graph.nodes:
            stack = node.meta.get("nn_module_stack") or {}
            owners = [(key, str(value[0]), str(value[1])) for key, value in stack.items()]
            add(node.format_node() or "", _described(node.meta.get("val")), owners)
            if node.op == "get_attr":
                held = operator.attrgetter(str(node.target))(part)
                if not isinstance(held, torch.fx.GraphModule):
                    tensors[f"{path}:{node.target}"] = held
    for name, value in sorted(tensors.items()):
        if not _plain(value):
            return None
        assert isinstance(value, torch.Tensor)
        held = value.detach().cpu().contiguous().reshape(-1)
        add(name, value.dtype, tuple(value.shape), value.stride())
        digest.update((torch.view_as_real(held) if held.is_complex() else held).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(value: object) -> bool:
    """Whether a tensor is no more than its shape, its dtype and its elements."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _described(value: object) -> object:
    """Shape and dtype of what an operator gives."""
    import torch

    if isinstance(value, (tuple, list)):
        return [_described(item) for item in value]
    return (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else type(value)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
