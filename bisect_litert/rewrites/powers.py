"""Values that are kept as exponents: factor * above / below * exp(log)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bisect_litert.rewrites.terms import ONE, Terms
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value


def of(function: Callable[..., Any], *operands: Any) -> Traced:
    """Calls a function of torch on traced tensors."""
    made: Traced = function(*operands)
    return made


@dataclass(frozen=True, eq=False)
class Power:
    """factor * above / below * exp(log)."""

    factor: float = 1.0
    above: Traced | None = None
    """None for 1."""
    below: Traced | None = None
    log: Terms = field(default_factory=Terms)
    excess: Traced | None = None
    """Where `above` is 1 + something small, that."""

    @property
    def level(self) -> Power:
        """The same without the exponential."""
        return replace(self, log=Terms())

    @property
    def is_number(self) -> bool:
        """Whether there is no tensor in it but the exponent."""
        return self.above is None and self.below is None

    def times(self, other: Power) -> Power:
        """Returns the product."""
        kept = self.excess if other.is_number else other.excess if self.is_number else None
        above, below = product(self.above, other.above), product(self.below, other.below)
        return Power(self.factor * other.factor, above, below, self.log.plus(other.log)[0], kept)

    def inverse(self) -> Power:
        """Returns 1 / self."""
        return Power(1.0 / self.factor, self.below, self.above, self.log.times(-ONE))


@dataclass(frozen=True)
class Risen(Value):
    """A value that is known as a power. `stored` is the tensor as it was computed where that is in range, or as it is
    computed now; what nothing reads is left out of the source."""

    power: Power = field(default_factory=Power)


def product(a: Traced | None, b: Traced | None) -> Traced | None:
    """Returns a * b, where None is 1."""
    return a * b if a is not None and b is not None else a if b is None else b
