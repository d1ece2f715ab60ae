"""Sums kept as their terms, so that what cancels is never computed: c1 * t1 + c2 * t2 + ... + offset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch

from bisect_litert.rewrites.contract import CannotRewrite
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true

NOTHING = Fraction(1, 10**12)
"""A coefficient this small beside those that made it is what rounding leaves of zero."""
MOST = 4
"""Terms of a sum that is still multiplied out."""
PLAIN = 2**11
"""Numbers up to here are written as they are, since fp16 holds all whole ones."""
ONE, ZERO = Fraction(1), Fraction(0)


@dataclass(frozen=True)
class Terms:
    """A linear combination of tensors. Its numbers are fractions, so that a third stays one: k * 0.333 is no whole
    number where k / 3 is, and a floor tells the two apart."""

    factors: Mapping[str, Fraction] = field(default_factory=dict)
    """By the name of the tensor's node."""
    offset: Fraction = ZERO
    rounded: bool = False
    """Whether something was taken for zero that is none."""

    def plus(self, other: Terms, factor: Fraction = ONE) -> tuple[Terms, bool]:
        """Returns self + factor * other, and whether terms cancelled, wholly or in part."""
        found, cancelled, rounded = dict(self.factors), False, self.rounded or other.rounded
        for name, value in other.factors.items():
            before, more = found.get(name, ZERO), factor * value
            after = before + more
            if before and abs(after) < max(abs(before), abs(more)) / 2:
                cancelled = True
            if abs(after) <= NOTHING * max(abs(before), abs(more)):
                found.pop(name, None)
                rounded = rounded or bool(after)
            else:
                found[name] = after
        more = factor * other.offset
        offset = self.offset + more
        if self.offset and abs(offset) < max(abs(self.offset), abs(more)) / 2:
            cancelled = True
            if abs(offset) <= NOTHING * abs(more):
                rounded = rounded or bool(offset)
                offset = ZERO
        return Terms(found, offset, rounded), cancelled

    def times(self, factor: Fraction) -> Terms:
        """Returns factor * self."""
        factors = {name: factor * value for name, value in self.factors.items()}
        return Terms(factors, factor * self.offset, self.rounded)

    def less(self, names: Iterable[str]) -> Terms:
        """Returns self without some of its terms."""
        left = {name: value for name, value in self.factors.items() if name not in names}
        return Terms(left, self.offset, self.rounded)

    def over(self) -> tuple[dict[str, float], float, float] | None:
        """Returns factors and offset that floats hold exactly, and the number their sum is to be divided by (5 k / 3
        and not 1.67 k); None where no floats do."""
        numbers = [*self.factors.values(), self.offset]
        below = math.lcm(*[number.denominator for number in numbers])
        if not below & (below - 1):
            divisor = ONE  # powers of two are factors as good as divisors
        else:
            divisor = Fraction(below)
            if max(divisor, *[abs(number * divisor) for number in numbers]) > PLAIN:
                common = math.gcd(*[(number * below).numerator for number in numbers])
                divisor /= common & -common  # x / 0.1 is written as that
            if max(divisor, *[abs(number * divisor) for number in numbers]) > PLAIN:
                divisor /= Fraction(2) ** (math.frexp(float_of(divisor))[1] - 1)
        held = [float_of(number * divisor) for number in [*numbers, ONE]]
        if any(Fraction(f) != number * divisor for f, number in zip(held, [*numbers, ONE], strict=True)):
            return None
        return dict(zip(self.factors, held[:-2], strict=True)), held[-2], held[-1]


def float_of(number: Fraction) -> float:
    """Returns the nearest float.

    Raises:
        CannotRewrite: It is too large for one.
    """
    try:
        return float(number)
    except OverflowError:
        raise CannotRewrite("a factor in it is larger than any float") from None


@dataclass(frozen=True)
class Summed(Value):
    """A tensor whose terms are known. `stored` is the tensor as it was computed, which is left out of the source when
    nothing reads it."""

    terms: Terms = Terms()


class Book:
    """The tensors that terms are made of, each computed once, and what is known of them."""

    def __init__(self) -> None:
        self.tensors: dict[str, Traced] = {}
        self.whole: set[str] = set()
        """Tensors of whole numbers."""
        self._made: dict[tuple[object, ...], Traced] = {}
        self._means: dict[str, tuple[str, tuple[int, ...], bool]] = {}
        self._squares: dict[str, tuple[str, str]] = {}

    def of(self, value: Value) -> Terms:
        """Returns a tensor's terms; itself, where nothing more is known."""
        return value.terms if isinstance(value, Summed) else Terms({self.enter(true(value)): ONE})

    def enter(self, tensor: Traced) -> str:
        """Makes a tensor one that terms can be made of; returns its name."""
        self.tensors[tensor.node.name] = tensor
        return str(tensor.node.name)

    def once(self, key: tuple[object, ...], make: Callable[[], Traced]) -> Traced:
        """Returns the tensor computed under a key, and computes it the first time."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def square(self, a: str, b: str) -> str:
        """The product of two tensors."""
        a, b = sorted((a, b))
        name = self.enter(self.once(("product", a, b), lambda: self.tensors[a] * self.tensors[b]))
        self._squares[name] = (a, b)
        if {a, b} <= self.whole:
            self.whole.add(name)
        return name

    def mean(self, name: str, axes: tuple[int, ...], keepdim: bool, shape: Sequence[int]) -> str:
        """The mean of a tensor, which may have been broadcast to a shape, over axes of that shape."""
        tensor = self.tensors[name]
        full = [1] * (len(shape) - tensor.ndim) + list(tensor.shape)
        if keepdim and all(full[axis] == 1 for axis in axes):
            return name
        # Where it repeats itself along an axis its mean along it is itself.
        own = tuple(axis - len(shape) for axis in axes)
        wide = tensor if tensor.ndim == len(shape) else tensor.reshape(*full)
        made = self.once(("mean", name, own, keepdim), lambda: wide.mean(own, keepdim=keepdim))
        found = self.enter(made)
        self._means[found] = (name, own, keepdim)
        return found

    def variances(self, terms: Terms) -> tuple[Terms, bool]:
        """Writes mean(t^2) - mean(t)^2 as mean((t - mean(t))^2)."""
        left, found = dict(terms.factors), False
        for name, factor in terms.factors.items():
            inner, axes, keepdim = self._means.get(name, ("", (), False))
            a, b = self._squares.get(inner, ("", "?"))
            if a != b:
                continue
            for other, against in terms.factors.items():
                pair = self._squares.get(other, ("", "?"))
                if pair[0] != pair[1] or self._means.get(pair[0]) != (a, axes, keepdim):
                    continue
                if abs(factor + against) * 10**6 > abs(factor):
                    continue
                del left[name], left[other]
                left[self._variance(a, axes, keepdim)] = factor
                found = True
        return Terms(left, terms.offset, terms.rounded), found

    def _variance(self, name: str, axes: tuple[int, ...], keepdim: bool) -> str:
        def make() -> Traced:
            tensor = self.tensors[name]
            d = tensor - tensor.mean(axes, keepdim=True)
            made: Traced = (d * d).mean(axes, keepdim=keepdim)
            return made

        return self.enter(self.once(("variance", name, axes, keepdim), make))

    def written(self, terms: Terms, shape: Sequence[int], like: Traced | None = None) -> Traced:
        """Computes a sum from its terms."""
        exact = terms.over()
        rounded = {name: float_of(factor) for name, factor in terms.factors.items()}, float_of(terms.offset), 1.0
        factors, offset, divisor = exact or rounded
        total: Traced | None = None
        for name, factor in factors.items():
            tensor = self.tensors[name]
            part = tensor if factor == 1.0 else tensor * factor
            if total is None:
                total = part
            elif factor < 0 and tensor is not part:
                total = total - (tensor if factor == -1.0 else tensor * -factor)
            else:
                total = total + part
        if total is None:
            some = like if like is not None else next(iter(self.tensors.values()))
            made: Traced = torch.zeros_like(some) + float(terms.offset)  # type: ignore[arg-type,assignment]
            return made if tuple(made.shape) == tuple(shape) else made.reshape(-1)[:1].expand(*shape)
        if offset:
            total = total + offset
        if divisor != 1.0:
            total = total / divisor
        if tuple(total.shape) != tuple(shape):
            total = total.expand(*shape)
        return total


def steady(terms: Terms, book: Book, axes: Sequence[int], rank: int) -> tuple[Terms, bool]:
    """Leaves out terms that are the same all along some axes, and the offset: what a function that does not care for
    them may be given."""
    kept = {}
    for name, factor in terms.factors.items():
        shape = book.tensors[name].shape
        full = [1] * (rank - len(shape)) + list(shape)
        if any(full[axis] != 1 for axis in axes):
            kept[name] = factor
    return Terms(kept, ZERO, terms.rounded), bool(terms.offset) or len(kept) < len(terms.factors)
