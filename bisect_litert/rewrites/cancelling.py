"""Sums whose terms cancel: large offsets, variance as a difference, index arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch

from bisect_litert.rewrites.contract import Replacement, Rewrite
from bisect_litert.rewrites.graph_rewriter import rewrite_graph
from bisect_litert.rewrites.handlers import Handler, Op, Table, axes_of
from bisect_litert.rewrites.plain import write
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.terms import MOST, ONE, Book, Summed, Terms, steady
from bisect_litert.rewrites.tracing import Traced
from bisect_litert.rewrites.values import Value, true
from bisect_litert.vocabulary import Cause

DOC = """The same computation without the terms that cancel.

fp16 has 11 bits: x + 1000 keeps x to the nearest half, and subtracting 1000 again does not bring the rest
back. So sums are followed as sums of terms, c1 * t1 + c2 * t2 + ... + offset, through sums, factors, means
and squares, and where terms cancel the result is computed from what is left. Three more identities do the
same: mean(t^2) - mean(t)^2 is mean((t - mean(t))^2); a softmax, a variance and a LayerNorm do not see what
is the same along their axis; and remainder(c * k + t, m) is remainder(t, m) for whole numbers k where m
divides c.

Limits: what is lost before the module, in a tensor that comes in with a large offset, is not brought back.
"""
_ONCE = "abs relu amax amin exp sigmoid tanh sqrt rsqrt reciprocal sin cos gelu silu matmul"
_WHOLE = "floor ceil round trunc"


class _Handlers:
    def __init__(self) -> None:
        self.book = Book()
        self.table: Table = {}
        for names, handler in (
            ("add sub rsub", self.add),
            ("mul", self.multiply),
            ("div", self.divide),
            ("neg", lambda op: self.kept(op, self.book.of(op["self"]).times(-ONE))),
            ("pow square", self.square),
            ("mean sum", self.mean),
            ("softmax _softmax log_softmax _log_softmax layer_norm var std", self.blind),
            ("remainder", self.remainder),
            ("floor_divide", self.floor_divide),
            (_ONCE, self.once),
            (_WHOLE, self.whole),
            ("to _to_copy", self.cast),
        ):
            for name in names.split():
                self.table[name] = handler

    # -- results -------------------------------------------------------------------------------------------------------

    def plain(self, op: Op) -> Traced:
        """The operator as it was, computed once for equal operands."""

        def word(thing: Any) -> Any:
            if isinstance(thing, Value):
                return true(thing).node.name
            return tuple(map(word, thing)) if isinstance(thing, (list, tuple)) else repr(thing)

        def tensor(thing: Any) -> Any:
            if isinstance(thing, Value):
                return true(thing)
            return type(thing)(map(tensor, thing)) if isinstance(thing, (list, tuple)) else thing

        key = (str(op.target), tuple(map(word, op.args)), tuple((k, word(v)) for k, v in sorted(op.kwargs.items())))

        def make() -> Traced:
            made: Traced = write(
                op,
                tuple(map(tensor, op.args)),
                {k: tensor(v) for k, v in op.kwargs.items()},
                {k: tensor(v) for k, v in op.operands.items()},
            )
            return made

        return self.book.once(key, make)

    def kept(self, op: Op, terms: Terms, cancelled: bool = False) -> Value:
        """A sum, written anew where terms cancelled."""
        terms, is_variance = self.book.variances(terms)
        if is_variance:
            op.change("mean(t^2) - mean(t)^2 is mean((t - mean(t))^2)")
        elif cancelled:
            op.change(f"{op.name}: terms that cancel are left out")
        if cancelled or is_variance:
            return Summed(self.book.written(terms, op.node.shape, self.some(op)), 0, terms)
        return Summed(self.plain(op), 0, terms)

    @staticmethod
    def some(op: Op) -> Traced:
        return next(true(v) for v in op.args if isinstance(v, Value))

    @staticmethod
    def floats(*values: Any) -> bool:
        return all(v.is_float if isinstance(v, Value) else math.isfinite(v) for v in values)

    @staticmethod
    def divides(number: Any) -> bool:
        return not isinstance(number, Value) and number != 0 and math.isfinite(number)

    # -- operators -----------------------------------------------------------------------------------------------------

    def add(self, op: Op) -> Any:
        x, y, alpha = op["self"], op["other"], op.get("alpha", 1)
        if not self.floats(x, y, alpha):
            return NotImplemented
        left, right = (self.book.of(v) if isinstance(v, Value) else Terms({}, Fraction(v)) for v in (x, y))
        if op.name == "rsub":
            left, right = right, left
        terms, cancelled = left.plus(right, Fraction(alpha) * (1 if op.name == "add" else -1))
        return self.kept(op, terms, cancelled)

    def multiply(self, op: Op) -> Any:
        x, y = op["self"], op["other"]
        if not self.floats(x, y):
            return NotImplemented
        if not isinstance(x, Value) or not isinstance(y, Value):
            tensor, number = (x, y) if isinstance(x, Value) else (y, x)
            return self.kept(op, self.book.of(tensor).times(Fraction(number)))
        return self.product(op, self.book.of(x), self.book.of(y))

    def product(self, op: Op, left: Terms, right: Terms) -> Any:
        if left != right or len(left.factors) + bool(left.offset) > MOST:
            return Summed(made := self.plain(op), 0, Terms({self.book.enter(made): ONE}))
        terms = Terms({}, left.offset * right.offset, left.rounded)
        for a, c in left.factors.items():
            terms, _ = terms.plus(Terms({a: 2 * c * left.offset} if left.offset else {}))
            for b, d in right.factors.items():
                terms, _ = terms.plus(Terms({self.book.square(a, b): c * d}))
        return Summed(self.plain(op), 0, terms)

    def square(self, op: Op) -> Any:
        x = op["self"]
        if not isinstance(x, Value) or not x.is_float or (op.name == "pow" and op["exponent"] != 2):
            return self.once(op)
        return self.product(op, self.book.of(x), self.book.of(x))

    def divide(self, op: Op) -> Any:
        x, y = op["self"], op["other"]
        if isinstance(y, Value) or not isinstance(x, Value) or not x.is_float or not self.divides(y):
            return NotImplemented
        if op.get("rounding_mode") == "floor":
            return self.floor_divide(op)
        return NotImplemented if op.get("rounding_mode") else self.kept(op, self.book.of(x).times(1 / Fraction(y)))

    def mean(self, op: Op) -> Any:
        x, axes = op["self"], axes_of(op)
        if not x.is_float or op.get("dtype") is not None or not x.stored.ndim:
            return NotImplemented
        shape = x.stored.shape
        axes = tuple(a % len(shape) for a in (range(len(shape)) if axes is None else axes))
        keepdim = bool(op.get("keepdim"))
        count = math.prod(shape[a] for a in axes) if op.name == "sum" else 1
        terms = self.book.of(x)
        total = Terms({}, terms.offset * count, terms.rounded)
        for name, factor in terms.factors.items():
            total, _ = total.plus(Terms({self.book.mean(name, axes, keepdim, shape): factor * count}))
        return Summed(self.plain(op), 0, total)

    def blind(self, op: Op) -> Any:
        """Functions that do not see what is the same along their axes."""
        x = op.get("self", op.get("input"))
        rank = x.stored.ndim
        axes = tuple(range(-len(op["normalized_shape"]), 0)) if op.name == "layer_norm" else axes_of(op)
        if not isinstance(x, Summed):
            return NotImplemented
        axes = tuple(range(rank)) if axes is None else axes
        terms, less = steady(x.terms, self.book, axes, rank)
        if not less or not terms.factors:
            return NotImplemented
        op.change(f"{op.name} is given what is not the same along its axis")
        given = Value(self.book.written(terms, x.stored.shape))
        swapped = {key: given if value is x else value for key, value in op.operands.items()}

        def tensor(thing: Any) -> Any:
            return true(thing) if isinstance(thing, Value) else thing

        args = tuple(tensor(given if value is x else value) for value in op.args)
        made = write(op, args, {k: tensor(v) for k, v in op.kwargs.items()}, {k: tensor(v) for k, v in swapped.items()})
        return Value(made)

    # -- whole numbers -------------------------------------------------------------------------------------------------

    def whole(self, op: Op) -> Any:
        x = op["self"]
        if op.name == "floor" and isinstance(x, Summed):
            return self.floored(op, x.terms)
        return self.entered(op, whole=True)

    def cast(self, op: Op) -> Any:
        x = op.args[0]
        if not isinstance(x, Value) or x.is_float or len(op.node.shape) != x.stored.ndim:
            return NotImplemented
        made = self.plain(op)
        if made.dtype.is_floating_point:
            self.book.whole.add(self.book.enter(made))
        return Value(made)

    def entered(self, op: Op, *, whole: bool) -> Value:
        made = self.plain(op)
        name = self.book.enter(made)
        if whole:
            self.book.whole.add(name)
        return Summed(made, 0, Terms({name: ONE}))

    def once(self, op: Op) -> Any:
        return Value(self.plain(op))

    def remainder(self, op: Op) -> Any:
        x, m = op["self"], op["other"]
        if not isinstance(x, Value) or not x.is_float or not self.divides(m):
            return NotImplemented
        terms = self.book.of(x)
        less = Terms(
            {n: self.modulo(c, m) if n in self.book.whole else c for n, c in terms.factors.items()},
            self.modulo(terms.offset, m),
            terms.rounded,
        )
        if less.factors == terms.factors:
            return NotImplemented
        rest = less.less({n for n, c in less.factors.items() if not c})
        if rest.rounded or rest.over() is None:
            return NotImplemented
        op.change(f"multiples of {m:g} are left out of what is taken modulo {m:g}")
        written = self.book.written(rest, op.node.shape, self.some(op))
        made: Traced = torch.remainder(written, m)  # type: ignore[assignment,arg-type]
        return Value(made)

    @staticmethod
    def modulo(number: Fraction, m: float) -> Fraction:
        """What is left of a number without multiples of m, with the number's sign."""
        left = abs(number) % abs(Fraction(m))
        return left if number >= 0 else -left

    def floor_divide(self, op: Op) -> Any:
        x, m = op["self"], op["other"]
        if not isinstance(x, Value) or not x.is_float or not self.divides(m):
            return NotImplemented
        return self.floored(op, self.book.of(x).times(1 / Fraction(m)))

    def floored(self, op: Op, terms: Terms) -> Any:
        """floor(c * k + t) is c * k + floor(t) for whole c and k. What is left of a quotient is divided by what it was
        divided by: a product with 1 / 3 is not the same."""
        out = {n: c for n, c in terms.factors.items() if n in self.book.whole and c.denominator == 1}
        rest = terms.less(out)
        if not out or terms.rounded or rest.over() is None:
            return self.entered(op, whole=True)
        total = Terms(out, Fraction(math.floor(rest.offset)))
        if rest.factors:
            made: Traced = torch.floor(self.book.written(rest, op.node.shape))  # type: ignore[assignment,arg-type]
            name = self.book.enter(made)
            self.book.whole.add(name)
            total = Terms({**out, name: ONE})
        op.change(f"{op.name}: whole numbers are added behind it")
        return Summed(self.book.written(total, op.node.shape, self.some(op)), 0, total)


def table() -> Table:
    """Returns handlers that share one book of tensors: for one graph."""
    handlers = _Handlers()

    def careful(handler: Handler) -> Handler:
        def guarded(op: Op) -> Any:
            values = [v for v in [*op.args, *op.kwargs.values()] if isinstance(v, Value)]
            return NotImplemented if all(v.stored.is_constant for v in values) else handler(op)

        return guarded

    return {name: careful(handler) for name, handler in handlers.table.items()}


def propose(region: Region) -> Iterator[Replacement]:
    """Fits a module in which terms cancel."""
    replacement = rewrite_graph(region, table(), DOC)
    if replacement is not None:
        yield replacement


REWRITE = Rewrite(
    name="cancelling",
    title="sums without the terms that cancel",
    causes=(Cause.PRECISION_LOSS, Cause.PRECISION_COMPOUNDING, Cause.OVERFLOW),
    symptom="an output off by some percent behind an offset that is added and taken away again; a variance of 0",
    why="fp16 has 11 bits, so x + 1000 keeps x to the nearest half, and integers above 2048 are not exact",
    rewrite="leave out the terms that cancel; variance as the mean of (x - mean)^2",
    limits="what is lost before the module is not brought back",
    propose=propose,
)
