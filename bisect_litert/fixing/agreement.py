"""Whether torch computes the same with a rewrite: one rule, for what is tried, what is saved and what is patched.

An output of the changed model may differ from the original's by `TORCH_LIMIT`, relative to its largest magnitude, in
fp32 and in fp64. Where the original's own fp32 result is further than that from its fp64 result, agreement with it in
fp32 means nothing: x + 1000 - 1000 loses digits in fp32 too, and a rewrite that keeps them differs by those. There fp64
decides: the two have to agree in fp64, and the changed model's fp32 result has to be at least as close to the
original's fp64 result as the original's own is. The other way round, where the two agree in fp32, in fp64 they may
differ by what fp32 costs the original: a mask of -1e9 swallows scores in fp32 that fp64 keeps, and what ships is the
fp32 model. Where the original returns nothing but noise, differences are relative to the terms that cancel there
(measuring/noise.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.errors import BisectError
from bisect_litert.measuring.noise import find_noise
from bisect_litert.models import eager, structure
from bisect_litert.models.preparation import LoadedModel

if TYPE_CHECKING:
    import torch

TORCH_LIMIT = 1e-5
"""Largest difference a rewrite may make to torch's own result, relative to each output's largest magnitude."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What the original model returns, by output label."""

    single: Mapping[str, np.ndarray]
    double: Mapping[str, np.ndarray] | None
    """None when the model does not run in fp64."""

    @property
    def terms(self) -> dict[str, float]:
        """Where an output is noise, the 2-norm of the terms that cancel, by its label."""
        return {label: found.terms for label, found in find_noise(self.double or {}, self.single).items()}


@dataclass(frozen=True, slots=True)
class Agreement:
    """How torch's result with a rewrite compares to the original's; differences are relative to an output's largest
    magnitude, and the largest over the outputs."""

    torch32: float
    torch64: float
    """nan where one of the two does not run in fp64."""
    own: float = nan
    """Where fp64 decided: how far the original's fp32 result is from its fp64 result; else nan."""
    off: float = nan
    """Where fp64 decided: how far the changed model's fp32 result is from the same; else nan."""
    complaint: str = ""
    """What is wrong with the changed model's own result; empty when nothing is."""


def truth_of(loaded: LoadedModel) -> Truth:
    """Runs the original model in fp32 and in fp64."""
    return Truth(_outputs(loaded, double=False), _double(loaded))


def agreement(loaded: LoadedModel, truth: Truth) -> Agreement:
    """Holds a changed model against the original in PyTorch.

    Raises:
        BisectError: It fails to run in fp32.
    """
    try:
        single = _outputs(loaded, double=False)
    except Exception as error:
        raise BisectError(f"The changed model fails in PyTorch: {eager.one_line(error)}.") from error
    return judged(truth, single, _double(loaded) if truth.double is not None else None)


def judged(truth: Truth, single: Mapping[str, np.ndarray], double: Mapping[str, np.ndarray] | None) -> Agreement:
    """Applies the rule to each output.

    Args:
        truth: What the original returns.
        single: What the changed model returns in fp32.
        double: The same in fp64; None when it does not run so.
    """
    if any(list(truth.single) != list(other) for other in (single, double) if other is not None):
        return Agreement(inf, inf, complaint="torch returns other outputs with it")
    rows, terms = [], truth.terms
    for label, wanted in truth.single.items():
        exact = None if truth.double is None else truth.double[label]
        size = terms.get(label, 0.0) / sqrt(max(1, wanted.size))
        wide = None if exact is None or double is None else _difference(exact, double[label], size)
        own, off = (nan if exact is None else _difference(exact, each, size) for each in (wanted, single[label]))
        rows.append((_difference(wanted, single[label], size), nan if wide is None else wide, own, off))
    complaints = [_complaint(*row) for row in rows]
    by_fp64 = [row for row, said in zip(rows, complaints, strict=True) if not said and not _strict(*row[:2])]
    decisive = max(by_fp64, key=lambda row: row[3], default=(nan,) * 4)
    return Agreement(
        torch32=_largest([row[0] for row in rows]),
        torch64=nan if double is None else _largest([row[1] for row in rows]),
        own=decisive[2],
        off=decisive[3],
        complaint=next((said for said in complaints if said), ""),
    )


def _strict(torch32: float, torch64: float) -> bool:
    return torch32 <= TORCH_LIMIT and not torch64 > TORCH_LIMIT


def _complaint(torch32: float, torch64: float, own: float, off: float) -> str:
    if _strict(torch32, torch64) or (torch32 <= TORCH_LIMIT and torch64 <= own):
        return ""
    if torch32 <= TORCH_LIMIT:
        return f"torch's own result in fp64 differs by {torch64:.2g} with it, {_allowed(own):.2g} is allowed"
    if not own > TORCH_LIMIT:
        return f"torch's own result differs by {torch32:.2g} with it, {TORCH_LIMIT:.2g} is allowed"
    if not torch64 <= TORCH_LIMIT:
        return f"torch's own result in fp64 differs by {torch64:.2g} with it, {TORCH_LIMIT:.2g} is allowed"
    if not off <= own:
        return f"torch's own fp32 result is off by {own:.2g} from fp64, and with it by {off:.2g}, which is more"
    return ""


def _allowed(own: float) -> float:
    return TORCH_LIMIT if isnan(own) else max(TORCH_LIMIT, own)


def _largest(values: list[float]) -> float:
    """nan where one of them is."""
    return float(np.max(values)) if values else 0.0


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


def _difference(wanted: np.ndarray, got: np.ndarray, size: float = 0.0) -> float:
    """Largest difference relative to the largest finite magnitude that is wanted, or to `size` if that is larger; inf
    for another shape."""
    if got.shape != wanted.shape:
        return inf
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(got - wanted))
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = max(size, float(finite.max())) if finite.size else 0.0
    largest = inf if np.isnan(difference).any() else float(difference.max())
    return largest / scale if scale else inf
