"""What a rewrite is, what it is given and what it returns.

A rewrite is a file of this package that ends in `REWRITE = Rewrite(...)` and is listed in `catalogue.py`. Given a
`Region`, a module of the model with what one forward showed of it, it proposes replacements: Python source of a class
that takes the module's place. What is proposed is tried on the GPU; only what was proved is called a fix.

A replacement's class

- takes the original module as its one positional argument, and settings (literals) by keyword;
- keeps the original's parameters, buffers and submodules under their names, so that checkpoints still load and a later
  replacement of a module around it finds them (`adopt` in `preamble.py` does it);
- is called as the original is, and returns what it returns;
- computes the same in fp32 up to rounding, for any input its docstring does not rule out;
- has a docstring with the derivation and the limits: its source is what the user keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bisect_litert.vocabulary import Cause

if TYPE_CHECKING:
    import torch

    from bisect_litert.rewrites.region import Region


class CannotRewrite(Exception):
    """A rewrite does not fit a region after all; its text, a clause without a full stop, is shown as what was tried."""


@dataclass(frozen=True, slots=True)
class Change:
    """One operator that a replacement writes otherwise."""

    operator: str
    """"aten.pow.Tensor_Scalar", or a module class where a whole module is replaced."""
    source: str
    """"model.py:41", the user's line; empty when unknown."""
    how: str
    """What is done instead and why, with the numbers that chose it."""
    exponent: int | None = None
    """The result is stored as value / 2^exponent; None where no factor was chosen."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What takes a module's place."""

    class_name: str
    source: str
    """Python that defines the class. It may use `torch`, `nn`, `F`, `math` and the functions of `preamble.py`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Literals for the constructor's keywords."""
    changes: tuple[Change, ...] = ()
    title: str = ""
    """What the user reads: "LayerNorm of values divided by their largest"; the rewrite's title if empty."""

    def build(self, original: torch.nn.Module) -> torch.nn.Module:
        """Runs the source and returns the new module, so that what is tried is what is kept."""
        from bisect_litert.rewrites.preamble import run_source

        module: torch.nn.Module = run_source(self.source)[self.class_name](original, **self.arguments)
        return module.train(original.training)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way out, and what the catalogue says of it."""

    name: str
    """"layer-norm": stable, in records and in --only."""
    title: str
    """What it does, in a few words."""
    causes: tuple[Cause, ...]
    """Verdicts it is tried for."""
    symptom: str
    """What the user sees."""
    why: str
    """What goes wrong on the GPU."""
    rewrite: str
    """What is written instead."""
    limits: str
    """Where it does not hold, or what it costs."""
    propose: Callable[[Region], Iterable[Replacement]]
    """Replacements for a region, the likeliest first; none, or `CannotRewrite`, where it does not fit."""
    upstream: str = ""
    """Known upstream issue."""
