"""Exponentials whose ratio or logarithm is in range, though they are not."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.handlers import Handler, Op, Table, axes_of
from bisect_litert.rewrites.plain import unchanged, write
from bisect_litert.rewrites.powers import Power, Risen, of, product
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.terms import ONE, Book, Terms
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import BOTTOM, TOP, Value, true
from bisect_litert.vocabulary import Cause

DOC = """The same computation with exponentials kept as their exponents, until a value is in range.

exp(11.1) passes fp16's 65504. So a value made of exponentials is followed as m * exp(l), where l is a sum of tensors
and m is near 1: products add the exponents, quotients and roots subtract and halve them, and a sum takes the largest
exponent out, exp(a) + exp(b) = exp(max(a, b)) * (1 + exp(-|a - b|)), and likewise along an axis. A quotient is computed
from the difference of the exponents, and a logarithm is l + log(m), with log1p where m is 1 + exp(-|a - b|).

Limits: what is returned has to fit fp16. Along an axis the largest exponent is taken out for all of it: where that one
is multiplied by 0, what is left may be too small for fp16.
"""
BEYOND = TOP * math.log(2.0)
"""Exponents up to here need no care."""
DROPPED = 1e-8
"""torch's softplus leaves out what is no more than this beside 1."""


def _beyond(value: Any) -> bool:
    """Whether a tensor leaves fp16's range upwards."""
    return isinstance(value, Value) and any(
        not bool((v.abs() <= 2.0**TOP).all()) for v in value.stored.values if v.is_floating_point()
    )


def _faint(value: Any) -> bool:
    """Whether a tensor of exponentials falls under fp16's smallest numbers."""
    return isinstance(value, Risen) and any(bool((v.abs() < 2.0**BOTTOM).any()) for v in value.stored.values)


class _Handlers:
    def __init__(self) -> None:
        self.book = Book()
        self.table: Table = {}
        for names, handler in (
            ("exp", self.exponential),
            ("log log1p", self.logarithm),
            ("mul", self.multiply),
            ("div", self.divide),
            ("reciprocal neg sqrt rsqrt square pow", self.raised),
            ("add sub rsub", self.add),
            ("sum mean", self.total),
            ("matmul bmm", self.mixed),
            ("softplus log_sigmoid logaddexp", self.fused),
            ("unsqueeze squeeze transpose permute to _to_copy", self.moved),
        ):
            for name in names.split():
                self.table[name] = handler

    # -- powers --------------------------------------------------------------------------------------------------------

    @staticmethod
    def power(thing: Any) -> Power:
        if not isinstance(thing, Value):
            return Power(float(thing))
        return thing.power if isinstance(thing, Risen) else Power(above=true(thing))

    def entered(self, tensor: Traced, factor: int = 1) -> Terms:
        return Terms({self.book.enter(tensor): ONE * factor})

    def sum_of(self, terms: Terms) -> Traced | None:
        """Computes a sum of exponents; None for 0."""
        if not terms.factors:
            return None
        shape = torch.broadcast_shapes(*[self.book.tensors[name].shape for name in terms.factors])
        return self.book.once(("sum", *sorted(terms.factors.items())), lambda: self.book.written(terms, shape))

    def fits(self, power: Power) -> bool:
        """Whether computing it takes no exponential out of range."""
        exponent = self.sum_of(power.log)
        more = math.log(power.factor) if power.factor > 0 else 0.0
        return exponent is None or all(bool((v + more <= BEYOND).all()) for v in exponent.values)

    def written(self, power: Power) -> Traced:
        """Computes a power."""
        exponent, factor = self.sum_of(power.log), power.factor
        if exponent is not None and not self.fits(replace(power, factor=1.0)) and factor > 0:
            exponent, factor = exponent + math.log(factor), 1.0  # the factor is what brings it back
        made = product(power.above, None if exponent is None else of(torch.exp, exponent))
        if made is None:
            return of(operator.truediv, factor, power.below)
        made = made if factor == 1.0 else made * factor
        return made if power.below is None else made / power.below

    def kept(self, op: Op, power: Power, how: str, *, apart: bool = False) -> Risen:
        """What an operator gives: as it was, or from exponents where what it reads is out of range and it is not."""
        made = unchanged(op)
        if not (apart or any(map(_beyond, op.operands.values()))) or not self.fits(power):
            return Risen(made, 0, power)
        new = self.written(power)
        if _beyond(Value(new)):
            return Risen(made, 0, power)
        op.change(f"{op.name}: {how}")
        return Risen(new, 0, power)

    # -- operators -----------------------------------------------------------------------------------------------------

    def exponential(self, op: Op) -> Any:
        return Risen(unchanged(op), 0, Power(log=self.entered(true(op["self"]))))

    def multiply(self, op: Op) -> Any:
        x, y = op["self"], op["other"]
        return self.kept(op, self.power(x).times(self.power(y)), "exponents are added first")

    def divide(self, op: Op) -> Any:
        x, y = op["self"], op["other"]
        if op.get("rounding_mode") is not None:
            return NotImplemented
        power = self.power(x).times(self.power(y).inverse())
        return self.kept(op, power, "exponents are subtracted before exp is taken", apart=_faint(y))

    def raised(self, op: Op) -> Any:
        x, n = op["self"], op.get("exponent", 2)
        if not isinstance(x, Risen):
            return NotImplemented
        power = x.power
        if op.name == "neg":
            return Risen(unchanged(op), 0, replace(power, factor=-power.factor))
        if op.name == "reciprocal" or (op.name == "pow" and n == -1):
            return self.kept(op, power.inverse(), "the exponent's sign is changed first", apart=_faint(x))
        if op.name in ("sqrt", "rsqrt"):
            if power.factor <= 0:
                return NotImplemented
            above, below = (None if part is None else of(torch.sqrt, part) for part in (power.above, power.below))
            half = Power(math.sqrt(power.factor), above, below, power.log.times(ONE / 2))
            half = half.inverse() if op.name == "rsqrt" else half
            return self.kept(op, half, "the exponent is halved first", apart=_faint(x))
        return self.kept(op, power.times(power), "the exponent is doubled first") if n == 2 else NotImplemented

    def logarithm(self, op: Op) -> Any:
        x = op["self"]
        power = x.power if op.name == "log" else self.summed(x.power, Power())
        if not (_beyond(x) or (op.name == "log" and _faint(x))) or power.factor <= 0:
            return NotImplemented
        parts = [self.sum_of(power.log)]
        if power.excess is not None:
            parts.append(of(torch.log1p, power.excess))
        elif power.above is not None:
            parts.append(of(torch.log, power.above))
        if power.below is not None:
            parts.append(-of(torch.log, power.below))  # type: ignore[operator]
        made = reduce(operator.add, [part for part in parts if part is not None])
        op.change(f"{op.name} of exponentials is their exponent and the log of what is left, which is near 1")
        return Value(made + math.log(power.factor) if power.factor != 1.0 else made)

    def add(self, op: Op) -> Any:
        x, y = op["self"], op["other"]
        if op.get("alpha", 1) != 1:
            return NotImplemented
        left, right = (self.power(v) for v in ((y, x) if op.name == "rsub" else (x, y)))
        if op.name != "add":
            right = replace(right, factor=-right.factor)
        return self.kept(op, self.summed(left, right), "the larger exponent is taken out")

    def summed(self, a: Power, b: Power) -> Power:
        """a + b = exp(top) * (a' * exp(log a - top) + b' * exp(log b - top)), where top is the larger exponent."""
        apart = self.sum_of(a.log.plus(b.log, -ONE)[0])
        if apart is None:
            levels = [each.factor if each.is_number else self.written(each.level) for each in (a, b)]
            total = levels[0] + levels[1]
            return Power(above=total, log=a.log) if isinstance(total, Traced) else Power(total, log=a.log)
        key = ("larger", *[tuple(sorted(each.log.factors.items())) for each in (a, b)])
        top = self.entered(self.book.once(key, lambda: self.larger(a.log, b.log)))
        if a.is_number and b.is_number and a.factor == b.factor == 1.0:
            less = of(torch.exp, -of(torch.abs, apart))  # type: ignore[operator]
            return Power(above=less + 1.0, log=top, excess=less)
        parts = [self.written(replace(each, log=each.log.plus(top, -ONE)[0])) for each in (a, b)]
        return Power(above=parts[0] + parts[1], log=top)

    def larger(self, a: Terms, b: Terms) -> Traced:
        left, right = self.sum_of(a), self.sum_of(b)
        if left is None or right is None:
            return of(torch.relu, right if left is None else left)
        return of(torch.maximum, left, right)

    def total(self, op: Op) -> Any:
        x, axes, keepdim = op["self"], axes_of(op), bool(op.get("keepdim"))
        taken = self.taken_out(x.power, tuple(range(x.stored.ndim)) if axes is None else axes, x.stored.ndim)
        if op.get("dtype") is not None or taken is None:
            return NotImplemented
        rest, top, axes = taken
        made = rest.sum(axes, keepdim=keepdim) if op.name == "sum" else rest.mean(axes, keepdim=keepdim)
        log = self.entered(top if keepdim else top.reshape(*made.shape))
        return self.kept(op, Power(above=made, log=log), "the largest exponent is taken out")

    def taken_out(self, power: Power, axes: tuple[int, ...], rank: int) -> tuple[Any, Any, tuple[int, ...]] | None:
        """Takes the largest exponent along some axes out; returns the rest, that exponent and the axes from behind."""
        exponent, axes = self.sum_of(power.log), tuple(axis % rank - rank for axis in axes)
        if exponent is None or exponent.ndim != rank:
            return None
        if all(exponent.shape[axis] == 1 for axis in axes):
            return None if power.is_number else (self.written(power.level), exponent, axes)
        key = ("largest", axes, *sorted(power.log.factors.items()))
        top = self.book.once(key, lambda: exponent.amax(axes, keepdim=True))
        rest = power.log.plus(self.entered(top), -ONE)[0]
        return self.written(replace(power, log=rest)), top, axes

    def mixed(self, op: Op) -> Any:
        """A product of exponentials with a matrix, as attention by hand makes it: each row's largest is taken out."""
        x, y = op["self"], op.get("other", op.get("mat2"))
        if not isinstance(x, Risen) or not _beyond(x) or isinstance(y, Risen) or y.stored.ndim < 2:
            return NotImplemented
        taken = self.taken_out(x.power, (-1,), x.stored.ndim)
        if taken is None:
            return NotImplemented
        power = Power(above=of(torch.matmul, taken[0], true(y)), log=self.entered(taken[1]))
        return self.kept(op, power, "the largest exponent of each row is taken out")

    def moved(self, op: Op) -> Any:
        """Moves the exponent along, where it is a tensor of the same shape, as what it is the exponent of."""
        x, made = op["self"], unchanged(op)
        exponent, power = self.sum_of(x.power.log), x.power
        parts = [part for part in (exponent, power.above, power.below) if part is not None]
        if any(part.shape != x.stored.shape for part in parts) or not made.dtype.is_floating_point:
            return Value(made)

        def move(part: Traced | None) -> Traced | None:
            if part is None:
                return None
            moved: Traced = write(op, (part, *op.args[1:]), dict(op.kwargs), {**op.operands, "self": part})
            return moved

        log = Terms() if exponent is None else self.entered(move(exponent))  # type: ignore[arg-type]
        return Risen(made, 0, Power(power.factor, move(power.above), move(power.below), log))

    def fused(self, op: Op) -> Any:
        """Functions of torch's own that are log(1 + exp(x)) inside."""
        x, size = true(op["self"]), float(op.get("beta", 1.0))
        y = true(op["other"]) if op.name == "logaddexp" else x
        peak = max(float(v.abs().max()) for v in [*x.values, *y.values]) * size
        if not peak > BEYOND or math.exp(-float(op.get("threshold", 20.0))) > DROPPED:
            return NotImplemented

        def softened(distance: Traced) -> Traced:
            return of(torch.log1p, of(torch.exp, -of(torch.abs, distance)))  # type: ignore[operator]

        if op.name == "logaddexp":
            op.change("logaddexp is max(x, y) + log1p(exp(-|x - y|)), whose exponential cannot overflow")
            return Value(of(torch.maximum, x, y) + softened(x - y))
        if op.name == "log_sigmoid":
            op.change("logsigmoid is min(x, 0) - log1p(exp(-|x|)), whose exponential cannot overflow")
            return Value(x - of(torch.relu, x) - softened(x))
        op.change("softplus is max(x, 0) + log1p(exp(-|x|)), whose exponential cannot overflow")
        return Value(of(torch.relu, x) + (softened(x) if size == 1.0 else softened(x * size) / size))


def table() -> Table:
    """Returns handlers that share one book of exponents: for one graph."""
    handlers = _Handlers()
    free = ("exp", "softplus", "log_sigmoid", "logaddexp")

    def careful(name: str, handler: Handler) -> Handler:
        """Leaves alone what no exponential goes into, and what is constant."""

        def guarded(op: Op) -> Any:
            values = [v for v in op.operands.values() if isinstance(v, Value)]
            numbers = [op.get(key) for key in ("self", "other") if isinstance(op.get(key), (int, float))]
            fits = all(v.is_float for v in values) and not all(v.stored.is_constant for v in values)
            fits = fits and all(math.isfinite(number) and number for number in numbers)
            known = name in free or any(isinstance(v, Risen) for v in values)
            return handler(op) if fits and known else NotImplemented

        return guarded

    return {name: careful(name, handler) for name, handler in handlers.table.items()}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module with exponentials that pass the range, and come back."""
    replacement = rewrite_graph(region, table(), DOC)
    if replacement is not None:
        yield replacement


REWRITE = Rewrite(
    name="exponentials",
    title="exponentials kept as exponents until they are in range",
    causes=(Cause.OVERFLOW,),
    symptom="infinities, NaN or zeros behind a softmax, softplus, log-sum-exp, sigmoid or tanh that a model writes out",
    why="fp16 holds exp(x) from x = -17 to 11.1 only, though log(exp(x)) and exp(x) / exp(y) may be in range",
    rewrite="take the largest exponent out before exp is taken; log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|))",
    limits="what is returned has to fit fp16",
    propose=propose,
)
