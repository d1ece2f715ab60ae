"""What every saved `rewrites.py` starts with, and how the source of a replacement is run.

The functions above `run_source` are written into the user's file as they stand here, so they need nothing of ours.
"""

from __future__ import annotations

import inspect
import linecache
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def adopt(new: nn.Module, original: nn.Module) -> None:
    """Gives a new module all that the original is and has but its forward: parameters, buffers and submodules under
    their names, attributes, methods, and its place in isinstance."""
    for name, parameter in original._parameters.items():
        new.register_parameter(name, parameter)
    for name, buffer in original._buffers.items():
        new.register_buffer(name, buffer, persistent=name not in original._non_persistent_buffers_set)
    for name, child in original._modules.items():
        new.add_module(name, child)
    for name, value in vars(original).items():
        if name not in vars(new):
            vars(new)[name] = value
    new.__class__ = type(type(new).__name__, (type(new), type(original)), {})


def replace_module(model: nn.Module, path: str, new: nn.Module) -> nn.Module:
    """Puts a module at a path of a model, and wherever else the model holds the one it replaces; returns the model."""
    old = model.get_submodule(path)
    if old is model:
        return new
    for part in list(model.modules()):
        for name, child in list(part._modules.items()):
            if child is old:
                part._modules[name] = new
                if part.__dict__.get(name) is old:
                    part.__dict__[name] = new
    return model


IMPORTS = """from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
"""


def text() -> str:
    """Returns the functions above as source."""
    return "\n\n\n".join(inspect.getsource(function).rstrip() for function in (adopt, replace_module)) + "\n"


def run_source(source: str) -> dict[str, Any]:
    """Runs a replacement's source and returns what it defines."""
    name = f"<rewrite {abs(hash(source)):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # torch.export reads lines
    space: dict[str, Any] = {
        "__name__": "rewrites",
        "torch": torch,
        "nn": nn,
        "F": F,
        "math": math,
        "adopt": adopt,
        "replace_module": replace_module,
    }
    exec(compile(source, name, "exec"), space)
    return space
