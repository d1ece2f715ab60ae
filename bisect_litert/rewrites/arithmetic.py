"""Arithmetic on values that are stored scaled: each function picks an exponent under which its result fits fp16."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bisect_litert.rewrites.tracing import Traced, peek
from bisect_litert.rewrites.values import (
    AIM,
    BOTTOM,
    FP16_MAX,
    SMALLEST,
    TOP,
    Value,
    align,
    low_of,
    peak_of,
    scale,
    shift_for,
    true,
)

Axes = Sequence[int]
Operand = Value | float | int


def multiply(a: Value, b: Operand, *, small_matters: bool = False) -> Value:
    """a * b; exponents add up."""
    if not isinstance(b, Value):
        return _times_number(a, float(b), small_matters)
    results = peek(torch.mul, a.stored, b.stored)
    natural = a.exponent + b.exponent
    shift = shift_for(peak_of(results), low_of(results), prefer=-natural, small_matters=small_matters)
    if shift % 2 and a.stored.node is b.stored.node:
        shift += 1  # both factors alike, and an exponent that a root can halve
    a, b = _balanced(a, b, shift)
    return Value(a.stored * b.stored, natural + shift)


def square(a: Value, *, small_matters: bool = False) -> Value:
    """a * a."""
    return multiply(a, a, small_matters=small_matters)


def divide(a: Value, b: Operand, *, small_matters: bool = False) -> Value:
    """a / b; exponents subtract."""
    if not isinstance(b, Value):
        if b == 0:
            return Value(true(a) / b)
        mantissa, exponent = _scaled_number(float(b), a.exponent)
        results = [value / mantissa for value in a.stored.values]
        natural = a.exponent - exponent
        shift = shift_for(peak_of(results), low_of(results), small_matters=small_matters)
        if abs(mantissa) * 2.0**shift <= FP16_MAX:
            return Value(a.stored / (mantissa * 2.0**shift), natural + shift)
        a = scale(a, a.exponent + shift)
        return Value(a.stored / mantissa, natural + shift)
    results = peek(torch.div, a.stored, b.stored)
    natural = a.exponent - b.exponent
    shift = shift_for(peak_of(results), low_of(results), prefer=-natural, small_matters=small_matters)
    if shift:
        a = scale(a, a.exponent + shift)
    return Value(a.stored / b.stored, natural + shift)


def add(a: Value, b: Operand, *, small_matters: bool = False, subtract: bool = False) -> Value:
    """a + b, or a - b, with the exponents aligned."""
    function = torch.sub if subtract else torch.add
    if not isinstance(b, Value):
        results = [function(v, b * 2.0**-a.exponent) for v in a.stored.values]
        peaks = max(peak_of(results), abs(b) * 2.0**-a.exponent)
        shift = shift_for(peaks, low_of(results), prefer=-a.exponent, small_matters=small_matters)
        a = scale(a, a.exponent + shift)
        number = b * 2.0**-a.exponent
        if small_matters and not subtract:
            number = _kept(number, low_of(results) * 2.0**-shift)
        return Value(a.stored - number if subtract else a.stored + number, a.exponent)
    common = max(a.exponent, b.exponent)
    results = [
        function(x * 2.0 ** (a.exponent - common), y * 2.0 ** (b.exponent - common))
        for x, y in zip(a.stored.values, b.stored.values, strict=True)
    ]
    shift = shift_for(peak_of(results), low_of(results), prefer=-common, small_matters=small_matters)
    # The operands are stored with that exponent too.
    largest = max(a.peak * 2.0 ** (a.exponent - common), b.peak * 2.0 ** (b.exponent - common))
    if largest and math.log2(largest) - shift > TOP:
        shift = shift_for(largest, largest)
    (x, y), common = align((a, b), common + shift)
    return Value(x - y if subtract else x + y, common)


def _kept(epsilon: float, low: float) -> float:
    """An epsilon so small that fp16 holds it as 0 guards no divisor: it is raised as far as changes no value seen by
    more than 2^-18."""
    raised = min(2.0**BOTTOM, 2.0 ** math.floor(math.log2(low) - 18)) if 0 < low < math.inf else 0.0
    return raised if 0 < epsilon < 2.0**SMALLEST <= raised else epsilon


def negative(a: Value) -> Value:
    """-a."""
    return Value(-a.stored, a.exponent)


def root(a: Value) -> Value:
    """sqrt(a): an even exponent halves."""
    a = _even(a)
    return Value(torch.sqrt(a.stored), a.exponent // 2)


def inverse_root(a: Value) -> Value:
    """1 / sqrt(a)."""
    a = _even(a)
    return Value(torch.rsqrt(a.stored), -(a.exponent // 2))


def reciprocal(a: Value) -> Value:
    """1 / a."""
    return Value(torch.reciprocal(a.stored), -a.exponent)


def mean(a: Value, axes: Axes | None, *, keepdim: bool) -> Value:
    """Mean over axes; the exponent stays. MEAN sums in fp32 on the GPUs this was measured on."""
    return Value(a.stored.mean() if axes is None else a.stored.mean(tuple(axes), keepdim=keepdim), a.exponent)


def total(a: Value, axes: Axes | None, *, keepdim: bool) -> Value:
    """Sum over axes. Where partial sums would leave the range it is the mean times the count: the mean stays among the
    values, and the count is a factor that the exponent takes."""
    axes = tuple(range(a.stored.ndim)) if axes is None else tuple(axes)
    if sums_fit(a, axes):
        return Value(a.stored.sum(axes, keepdim=keepdim), a.exponent)
    count = math.prod(a.stored.shape[axis] for axis in axes)
    return multiply(mean(a, axes, keepdim=keepdim), float(count))


def sums_fit(a: Value, axes: Axes | None) -> bool:
    """Whether the partial sums over axes fit, in any order."""
    sums = peak_of([v.abs().sum(tuple(range(v.ndim)) if axes is None else tuple(axes)) for v in a.stored.values])
    return sums == 0 or math.log2(sums) <= TOP


def product(function: Callable[..., Any], a: Value, b: Value, *more: Any) -> Value:
    """A matrix product or convolution of a and b: linear in both, with partial sums that have to fit."""
    sums = peak_of(peek(lambda x, y: function(x.abs(), y.abs(), *more), a.stored, b.stored))
    natural = a.exponent + b.exponent
    shift = 0
    if sums and not math.log2(sums) <= TOP:
        shift = shift_for(sums, sums)
    else:
        results = peek(lambda x, y: function(x, y, *more), a.stored, b.stored)
        shift = shift_for(peak_of(results), low_of(results), prefer=-natural)
        if shift < 0 and sums and math.log2(sums) - shift > TOP:
            shift = 0
    a, b = _balanced(a, b, shift)
    return Value(function(a.stored, b.stored, *more), natural + shift)


def exponential(a: Value, *, small_matters: bool = False) -> Value:
    """exp(a): what leaves the range is a power of two taken out of the exponent, exp(a - k ln 2) * 2^k."""
    x = true(a, "the argument of exp")
    results = [torch.exp(v) for v in x.values]
    shift = shift_for(peak_of(results), low_of(results), small_matters=small_matters)
    return Value(torch.exp(x - shift * math.log(2.0) if shift else x), shift)


def logarithm(a: Value) -> Value:
    """log(a) = log(stored) + exponent * ln 2."""
    y = torch.log(a.stored)
    return Value(y + a.exponent * math.log(2.0) if a.exponent else y)


def largest(a: Value, axes: Axes, *, keepdim: bool = True) -> Value:
    """Maximum over axes."""
    return Value(a.stored.amax(tuple(axes), keepdim=keepdim), a.exponent)


def below_maximum(a: Value, axis: int, floor: float) -> Traced:
    """Returns a - max(a) along an axis as it is, at least `floor`.

    The difference is taken before it is scaled back, and what lies under the floor is cut off before that, so that
    nothing on the way passes fp16's range.
    """
    rest = a.stored - a.stored.amax((axis,), keepdim=True)
    if peak_of(rest.values) > -floor * 2.0**-a.exponent:
        rest = rest.clamp(min=floor * 2.0**-a.exponent)
    return true(Value(rest, a.exponent), "a difference of logits")


def clamped(a: Value, low: float | None, high: float | None, *, small_matters: bool = False) -> Value:
    """clamp(a, low, high), the bounds scaled along."""
    results = [torch.clamp(v, *(_bound(x, a.exponent) for x in (low, high))) for v in a.stored.values]
    shift = shift_for(peak_of(results), low_of(results), prefer=-a.exponent, small_matters=small_matters)
    if shift:
        top = a.peak and math.log2(a.peak) - shift
        if top > TOP:  # what the clamp would cut off has to fit before it
            shift += math.ceil(top) - AIM
        a = scale(a, a.exponent + shift)
    bounds = [_bound(x, a.exponent) for x in (low, high)]
    # A bound beyond the range cuts nothing off that the range would not.
    bounds = [None if x is not None and abs(x) > FP16_MAX else x for x in bounds]
    kept = {key: x for key, x in zip(("min", "max"), bounds, strict=True) if x is not None}
    return Value(a.stored.clamp(**kept), a.exponent) if kept else a


def _bound(number: float | None, exponent: int) -> float | None:
    return None if number is None else number * 2.0**-exponent


def _times_number(a: Value, number: float, small_matters: bool) -> Value:
    if number == 0 or not math.isfinite(number):
        return Value(true(a) * number)
    results = [v * number for v in a.stored.values]
    shift = shift_for(peak_of(results), low_of(results), prefer=-a.exponent, small_matters=small_matters)
    factor = number * 2.0**-shift
    size = math.log2(abs(factor))
    if not BOTTOM <= size <= TOP:
        # The factor itself is no fp16 number: a power of two of it goes to the tensor, or stays in the exponent.
        rest = math.floor(size)
        factor *= 2.0**-rest
        return scale(Value(a.stored * factor, a.exponent + shift + rest), a.exponent + shift)
    return Value(a.stored if factor == 1.0 else a.stored * factor, a.exponent + shift)


def _scaled_number(number: float, near: int) -> tuple[float, int]:
    """A number as mantissa and exponent; with the given exponent if fp16 holds the mantissa then."""
    for exponent in (near, 0):
        if BOTTOM <= math.log2(abs(number)) - exponent <= TOP:
            return number * 2.0**-exponent, exponent
    exponent = math.floor(math.log2(abs(number)))
    return number * 2.0**-exponent, exponent


def _balanced(a: Value, b: Value, shift: int) -> tuple[Value, Value]:
    """Divides one or both factors so that their product is divided by 2^shift.

    A constant takes it all as long as fp16 still holds it, since that costs nothing; else the larger factor does.
    """
    if not shift:
        return a, b
    if a.stored.node is b.stored.node and shift % 2 == 0:
        half = scale(a, a.exponent + shift // 2)
        return half, half
    sizes = [math.log2(v.peak) if v.peak else 0.0 for v in (a, b)]
    for index, value in enumerate((a, b)):
        if value.stored.is_constant and -8 <= sizes[index] - shift <= TOP:
            moved = scale(value, value.exponent + shift)
            return (moved, b) if index == 0 else (a, moved)
    part = round((shift + sizes[0] - sizes[1]) / 2)
    part = max(0, min(shift, part)) if shift > 0 else min(0, max(shift, part))
    return scale(a, a.exponent + part), scale(b, b.exponent + shift - part)


def _even(a: Value) -> Value:
    return scale(a, a.exponent + 1) if a.exponent % 2 else a
