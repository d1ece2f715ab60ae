"""A copy of the model with a module replaced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bisect_litert import eager
from bisect_litert.preparation import LoadedModel

if TYPE_CHECKING:
    from bisect_litert.rewrites.contract import Replacement


@dataclass(frozen=True)
class Step:
    """One replacement at one place."""

    path: str
    replacement: Replacement


def replaced(loaded: LoadedModel, step: Step) -> LoadedModel:
    """Returns the model with one module replaced; the original stays as it is, parameters are shared."""
    from bisect_litert.rewrites.preamble import replace_module

    copy = eager.copy_module(loaded.module)
    new = step.replacement.build(copy.get_submodule(step.path))
    return replace(loaded, module=replace_module(copy, step.path, new))
