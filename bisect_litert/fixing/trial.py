"""A copy of the model with a module replaced, held against the original in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert import eager, structure
from bisect_litert.errors import BisectError
from bisect_litert.preparation import LoadedModel

if TYPE_CHECKING:
    import torch

    from bisect_litert.rewrites.contract import Replacement

TORCH_LIMIT = 1e-5
"""Largest difference a rewrite may make to torch's own result, relative to each output's largest magnitude."""


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


@dataclass(frozen=True, slots=True)
class Truth:
    """What the original model returns, by output label."""

    single: Mapping[str, np.ndarray]
    double: Mapping[str, np.ndarray] | None
    """None when the model does not run in fp64."""

    @property
    def own_error(self) -> float:
        """How far torch's fp32 result is from its fp64 result; 0 when that is not known."""
        return 0.0 if self.double is None else _worst(self.double, self.single)

    def complaint(self, torch32: float, torch64: float) -> str:
        """Returns what is wrong with a changed model's own result, "" when nothing is.

        What fp32 itself costs the original is allowed in one of the two. In fp64: a mask of -1e9 swallows scores in
        fp32 that fp64 keeps, and what ships is the fp32 model. In fp32, where fp64 shows that the maths is the same:
        x + 1000 - 1000 loses digits in fp32 too, and a rewrite that keeps them differs by those. It may be as far on
        the other side of the fp64 result.
        """
        own = self.own_error
        same = torch64 <= TORCH_LIMIT
        allowed = max(TORCH_LIMIT, 2 * own) if same else TORCH_LIMIT
        if not torch32 <= allowed:
            return f"torch's own result differs by {torch32:.2g} with it, {allowed:.2g} is allowed"
        allowed = max(TORCH_LIMIT, own)
        if torch64 > allowed:
            return f"torch's own result in fp64 differs by {torch64:.2g} with it, {allowed:.2g} is allowed"
        return ""


def truth_of(loaded: LoadedModel) -> Truth:
    """Runs the original model in fp32 and in fp64."""
    return Truth(_outputs(loaded, double=False), _double(loaded))


def differences(loaded: LoadedModel, truth: Truth) -> tuple[float, float]:
    """Returns how far a changed model is from the original in fp32 and in fp64.

    Returns:
        Largest difference over the float outputs relative to each output's largest magnitude; nan where one of the two
        does not run in that precision.

    Raises:
        BisectError: It fails to run in fp32.
    """
    try:
        single = _worst(truth.single, _outputs(loaded, double=False))
    except Exception as error:
        raise BisectError(f"The changed model fails in PyTorch: {eager.one_line(error)}.") from error
    double = _double(loaded) if truth.double is not None else None
    return single, nan if double is None or truth.double is None else _worst(truth.double, double)


def _double(loaded: LoadedModel) -> dict[str, np.ndarray] | None:
    try:
        return _outputs(loaded, double=True)
    except Exception:
        return None


def _outputs(loaded: LoadedModel, *, double: bool) -> dict[str, np.ndarray]:
    import torch

    module: torch.nn.Module = eager.copy_module(loaded.module, share_parameters=not double)
    args: Any = loaded.args
    kwargs: Any = loaded.kwargs
    if double:
        module = module.double()
        args, kwargs = (
            structure.replace(
                value, {label: t.double() for label, t in structure.leaves(value) if t.dtype == torch.float32}
            )
            for value in (args, kwargs)
        )
    returned = eager.call(module, args, kwargs)
    return {label: t.detach().double().numpy() for label, t in structure.leaves(returned)}


def _worst(reference: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]) -> float:
    if list(reference) != list(target):
        return inf
    worst = 0.0
    for label, wanted in reference.items():
        got = target[label]
        if got.shape != wanted.shape:
            return inf
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        if same.all():
            continue
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(got - wanted))
        finite = np.abs(wanted[np.isfinite(wanted)])
        scale = float(finite.max()) if finite.size else 0.0
        largest = inf if np.isnan(difference).any() else float(difference.max())
        worst = max(worst, largest / scale if scale else inf)
    return worst
