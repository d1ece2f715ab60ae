"""The search, on readings made from real comparisons: faults planted in random graphs are found, and only they."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bisect_litert.block_record import Comparison
from bisect_litert.measuring.metrics import FP16_UNIT, compare
from bisect_litert.record import Settings
from bisect_litert.search.culprits import (
    Reading,
    Upstream,
    amplification,
    asks_for_fp32,
    cause_of,
    faulty,
    find_faults,
    find_loss,
    leaves_range,
    limit,
    misconverted,
    out_of_line,
    quietly_wrong,
)
from bisect_litert.vocabulary import Cause

SETTINGS = Settings()
HINTED = {"local": 1e-3, "expected": 2e-4}
TRUTH = np.random.default_rng(0).standard_normal(400)
NOISE = np.random.default_rng(1).standard_normal(400)
NOISE *= np.linalg.norm(TRUTH) / np.linalg.norm(NOISE)


def off(error: float) -> Comparison:
    """A comparison with this relative L2 error; nan stands for a tensor with NaN in it."""
    target = TRUTH + (0 if isnan(error) else error) * NOISE
    if isnan(error):
        target = target.copy()
        target[3] = nan
    return compare(reference=TRUTH, target=target)


GONE = compare(reference=TRUTH, target=np.full_like(TRUTH, nan))


def reading(
    block: str = "b",
    *parents: str,
    local: float = 3e-4,
    cumulative: float = 5e-4,
    expected: float = 2e-4,
    half: float = 2e-4,
    cpu: float = 1e-7,
    fp32: float | None = None,
    **more: object,
) -> Reading:
    return Reading(
        tap=block,
        block=block,
        parents=parents,
        cumulative=off(cumulative),
        local=off(local),
        expected=off(expected),
        half=off(half),
        cpu=off(cpu),
        fp32_cost=1e-7,
        fp32=None if fp32 is None else off(fp32),
        fp32_ran=fp32 is not None,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("what", "asks", "wrong"),
    [
        ({}, False, False),
        (HINTED, True, False),
        # fp32 leaves it where it is: no sum that is long in fp16 explains it
        ({**HINTED, "fp32": 9e-4}, True, True),
        # most of it is fp16's, or fp32 itself is no better
        ({**HINTED, "fp32": 3e-4}, True, False),
        ({**HINTED, "fp32": 9e-4, "fp32_cost": 1e-5}, True, False),
        # an error of rounding's size is not looked at, and a file that is off is its own cause
        ({"fp32": 3e-4}, False, False),
        ({**HINTED, "fp32": 9e-4, "cpu": 9e-4}, True, False),
        ({"local": 1e-3, "expected": 9e-4, "fp32": 9e-4}, False, False),
        # where rounding alone costs a tenth, an error of that size in fp32 is none of rounding's
        ({"local": 0.23, "expected": 0.09, "fp32": 0.22}, False, True),
        ({"local": 0.23, "expected": 0.09, "fp32": 0.02}, False, False),
    ],
)
def test_what_a_block_in_line_hides(what: dict[str, Any], asks: bool, wrong: bool) -> None:
    one = replace(reading(**{k: v for k, v in what.items() if k != "fp32_cost"}), fp32_cost=what.get("fp32_cost", 1e-7))
    assert (asks_for_fp32(one, SETTINGS), quietly_wrong(one, SETTINGS)) == (asks, wrong)


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ({}, None),
        ({"local": 1e-3, "expected": 2e-4}, None),
        # far off where fp32 is right: digits, or range where emulated fp16 shows it too
        ({"local": 0.2, "fp32": 1e-6}, Cause.PRECISION_LOSS),
        ({"local": 0.2, "half": 0.2, "fp32": 1e-6}, Cause.OVERFLOW),
        ({"local": nan, "half": nan, "fp32": 1e-6}, Cause.OVERFLOW),
        ({"local": nan, "fp32": 1e-6}, Cause.PRECISION_LOSS),
        ({"local": nan, "fp32": 1e-6, "accumulated": 7e4}, Cause.OVERFLOW),
        ({"local": 0.2, "fp32": 1e-6, "accumulated": 6e4}, Cause.PRECISION_LOSS),
        # both GPU runs wrong
        ({"local": 0.2, "fp32": 0.2}, Cause.WRONG_KERNEL),
        ({"local": nan, "fp32": nan}, Cause.WRONG_KERNEL),
        ({"local": 0.2, "fp32": nan}, Cause.WRONG_KERNEL),
        ({"local": 0.2, "half": 0.2, "fp32": 0.2}, Cause.WRONG_KERNEL),
        # fp32 a little off, but not by a share of the fault
        ({"local": 0.2, "half": 0.2, "fp32": 1e-3}, Cause.OVERFLOW),
        # what the file's own integers cost is no excuse for a kernel, and is none of its faults
        ({"local": 0.7, "fp32": 0.68, "expected": 0.012, "half": 0.012, "step": 0.012}, Cause.WRONG_KERNEL),
        ({"local": 0.7, "half": 0.7, "fp32": 0.02, "expected": 0.012, "step": 0.012}, Cause.OVERFLOW),
        # no control was run: digits or range
        ({"local": 0.2}, Cause.PRECISION_LOSS),
        ({"local": 0.2, "half": 0.2}, Cause.OVERFLOW),
        # the file itself is off, whatever the GPU does with it
        ({"cpu": 0.05}, Cause.CONVERSION),
        ({"cpu": nan}, Cause.CONVERSION),
        ({"cpu": 0.05, "local": 0.05, "fp32": 0.05}, Cause.CONVERSION),
        # a constant that was moved costs the CPU a little, and fp16 all digits
        ({"cpu": 3e-4, "local": 0.5, "fp32": 3e-4}, Cause.PRECISION_LOSS),
        ({"cpu": 3e-4, "local": 3e-4}, Cause.CONVERSION),
        ({"cpu": 5e-5}, None),
        # a block that rounding alone ruins is out of line only far beyond that
        ({"local": 0.4, "expected": 0.3, "half": 0.3}, None),
    ],
)
def test_causes(what: dict[str, float], cause: Cause | None) -> None:
    r = reading(**what)  # type: ignore[arg-type]
    assert cause_of(r, SETTINGS) is cause
    assert find_faults([r], SETTINGS) == ([] if cause is None else ["b"])


def test_fp32_noise_that_torch_has_itself_is_no_conversion() -> None:
    assert misconverted(reading(cpu=5e-4), SETTINGS)
    assert not misconverted(replace(reading(cpu=5e-4), fp32_cost=1e-5), SETTINGS)


def test_nothing_measured_is_no_fault() -> None:
    bare = Reading("b", "b", (), None, None, None, None)
    assert find_faults([bare], SETTINGS) == []
    assert cause_of(bare, SETTINGS) is None
    assert isnan(bare.ratio)
    assert find_loss([bare], SETTINGS) == ([], False)


def test_a_target_without_one_finite_value_is_faulty() -> None:
    r = replace(reading(), local=GONE)
    assert isnan(GONE.relative_l2)
    assert faulty(r, SETTINGS)


def test_cost_has_a_floor_and_survives_a_useless_expectation() -> None:
    assert replace(reading(), expected=None).cost == FP16_UNIT
    assert reading(expected=1e-9).cost == FP16_UNIT
    assert replace(reading(), expected=GONE).cost == FP16_UNIT
    zero = compare(reference=np.zeros(2), target=np.ones(2))
    assert zero.relative_l2 == inf
    assert replace(reading(), expected=zero).cost == FP16_UNIT
    assert reading(expected=0.1).cost == pytest.approx(0.1)


def test_new_zeros_of_a_whole_tensor_are_out_of_line() -> None:
    assert out_of_line(compare(reference=TRUTH, target=0 * TRUTH), 0.5)


NUMBERS = st.floats(1e-7, 1.0)


@pytest.mark.parametrize(
    ("measured", "cause"),
    [
        ({"local": 0.3}, Cause.WRONG_KERNEL),  # nothing on the CPU explains it
        ({"local": nan}, Cause.WRONG_KERNEL),
        ({"local": 0.3, "half": 0.3}, Cause.OVERFLOW),  # emulated fp16 shows it too
        ({"local": nan, "accumulated": 7e4}, Cause.OVERFLOW),
        ({"local": 5e-3}, Cause.PRECISION_LOSS),  # small enough for a sum in fp16
        ({"local": 0.3, "allowance": 1000.0}, Cause.PRECISION_LOSS),  # a sum that long may cost as much
        ({"local": 0.3, "cpu": 0.3}, Cause.CONVERSION),
        ({"local": 3e-4}, None),
    ],
)
def test_without_fp32_on_the_gpu_the_emulated_run_decides(measured: dict[str, Any], cause: Cause | None) -> None:
    assert cause_of(reading(uncontrolled=True, **measured), SETTINGS) is cause
    # With the control it has the last word, and emulation has no kernels that could be wrong.
    if cause is Cause.WRONG_KERNEL:
        assert cause_of(reading(fp32=1e-6, **measured), SETTINGS) is Cause.PRECISION_LOSS
        assert cause_of(reading(**measured), SETTINGS) is Cause.PRECISION_LOSS


@given(NUMBERS, NUMBERS, st.floats(1, 100), st.floats(1, 100))
def test_limits_grow_with_what_is_granted(cost: float, more: float, factor: float, wider: float) -> None:
    r = replace(reading(expected=cost), allowance=factor)
    base = limit(r, SETTINGS)
    slack = 1e-9 * base
    assert limit(reading(expected=cost + more), SETTINGS) >= limit(reading(expected=cost), SETTINGS) - slack
    assert limit(replace(r, allowance=factor * wider), SETTINGS) >= base - slack
    assert limit(r, replace(SETTINGS, ratio_limit=10 * wider)) >= base - slack
    assert limit(r, replace(SETTINGS, output_limit=1e-2 * wider)) >= base - slack
    assert base >= SETTINGS.ratio_limit * FP16_UNIT
    # long sums alone never excuse more than an output may be off
    assert base <= max(SETTINGS.output_limit, SETTINGS.ratio_limit * r.cost)


@given(NUMBERS, NUMBERS)
def test_a_larger_error_is_never_less_of_a_fault(error: float, more: float) -> None:
    assert faulty(reading(local=error), SETTINGS) <= faulty(reading(local=error + more), SETTINGS)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """For each block, the blocks it reads; every block but the first reads at least one before it."""
    count = draw(st.integers(2, 12))
    parents: list[tuple[int, ...]] = [()]
    for k in range(1, count):
        parents.append(tuple(draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=3))))
    return parents


def descendants(parents: Sequence[tuple[int, ...]], k: int) -> set[int]:
    found = {k}
    for i, before in enumerate(parents):
        if found.intersection(before):
            found.add(i)
    return found


def planted(parents: Sequence[tuple[int, ...]], faults: dict[int, float], noise: Sequence[float]) -> list[Reading]:
    """Cumulative error is large behind a fault, local error only at it."""
    hit: set[int] = set()
    for k in faults:
        hit |= descendants(parents, k)
    return [
        reading(
            f"b{i}",
            *(f"b{p}" for p in before),
            local=faults.get(i, noise[i]),
            cumulative=0.3 if i in hit else noise[i],
            fp32=1e-6,
        )
        for i, before in enumerate(parents)
    ]


@given(graphs(), st.data())
@hypothesis_settings(max_examples=100, deadline=None)
def test_planted_faults_are_found_and_nothing_else(parents: list[tuple[int, ...]], data: st.DataObject) -> None:
    k = data.draw(st.sets(st.integers(0, len(parents) - 1), min_size=0, max_size=3))
    size = st.one_of(st.floats(0.05, 10), st.just(nan))
    faults = {i: data.draw(size) for i in sorted(k)}
    noise = [data.draw(st.floats(0, 2e-3)) for _ in parents]
    readings = planted(parents, faults, noise)
    assert find_faults(readings, SETTINGS) == [f"b{i}" for i in sorted(k)]


@given(graphs())
@hypothesis_settings(max_examples=100, deadline=None)
def test_upstream_is_everything_before(parents: list[tuple[int, ...]]) -> None:
    before = Upstream(planted(parents, {}, [0.0] * len(parents)))
    for i in range(len(parents)):
        behind = {f"b{k}" for k in range(i) if i in descendants(parents, k)}
        assert {f"b{k}" for k in range(len(parents)) if before.follows(f"b{i}", [f"b{k}"])} == behind


def test_upstream_of_a_block_with_several_taps_does_not_hold_itself() -> None:
    readings = [
        reading("a"),
        replace(reading("b", "a"), tap="b[0]"),
        replace(reading("b", "b[0]"), tap="b[1]"),
        reading("c", "b[1]"),
    ]
    before = Upstream(readings)
    found = {block: [other for other in "abc" if before.follows(block, [other])] for block in "abc"}
    assert found == {"a": [], "b": ["a"], "c": ["a", "b"]}
    assert not before.follows("b", ["b", "c", "elsewhere"])


def chain(*levels: float, output: float | None = None) -> list[Reading]:
    readings = [
        reading(f"b{i}", *([f"b{i - 1}"] if i else []), cumulative=level, local=3e-4) for i, level in enumerate(levels)
    ]
    end = levels[-1] if output is None else output
    last = reading("(output)", f"b{len(levels) - 1}", cumulative=end, output=True)
    return [*readings, replace(last, tap="output")]


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        (chain(3e-4, 4e-4, 5e-4), ([], False)),
        (chain(5e-4, 1e-3, 0.2, 0.2), (["b2"], True)),
        (chain(5e-4, 0.2, 0.2, 5e-3), ([], False)),
        # three times a block is compounding, however far it gets
        (chain(5e-4, 1.5e-3, 4.5e-3, 1.4e-2, 4e-2, 0.12), ([], True)),
        # a jump counts when it explains a third of what an output is off, also below the output's own limit
        (chain(5e-4, 7e-3, 1.2e-2), (["b1"], True)),
        (chain(5e-4, 5.5e-3, 2e-2), ([], True)),
        (chain(0.2, 0.2), (["b0"], True)),
        # only the output jumps
        (chain(5e-4, 5e-4, output=0.2), (["(output)"], True)),
        # the larger of two
        (chain(5e-4, 2e-2, 0.5), (["b1"], True)),
    ],
)
def test_loss_is_a_jump_and_compounding_is_not(readings: list[Reading], found: tuple[list[str], bool]) -> None:
    assert find_loss(readings, SETTINGS) == found


def test_loss_behind_an_untapped_block_compares_with_what_is_before_it() -> None:
    a, b, c, out = chain(8e-3, 8e-3, 0.05)
    blind = replace(b, cumulative=None, local=None)
    assert find_loss([a, blind, c, out], SETTINGS) == ([], True)
    a = replace(a, cumulative=off(4e-3))
    assert find_loss([a, blind, c, out], SETTINGS) == (["b2"], True)


def test_loss_behind_a_healed_block_starts_anew() -> None:
    readings = chain(5e-4, 0.2, 0.2)
    readings[1] = replace(readings[1], healed=True)
    assert find_loss(readings, SETTINGS) == (["b2"], True)


def test_amplification() -> None:
    r = reading("b", "x", "y", cumulative=0.1)
    assert amplification(r, {"x": 0.01, "y": 0.05}) == pytest.approx(2.0)
    assert amplification(r, {"x": 1e-9}) == pytest.approx(0.1 / FP16_UNIT)
    assert amplification(reading(cumulative=0.0), {}) == 1.0
    assert isnan(amplification(replace(r, cumulative=None), {}))


@given(st.lists(st.floats(1.0, 9.0), min_size=1, max_size=12))
def test_gentle_growth_blames_no_block(growth: list[float]) -> None:
    levels = list(np.minimum(FP16_UNIT * np.cumprod(growth), 1e3))
    assert find_loss(chain(*levels), SETTINGS)[0] == []


@given(st.integers(1, 8), st.floats(60, 1e4))
def test_one_jump_is_blamed_wherever_it_is(k: int, jump: float) -> None:
    levels = [FP16_UNIT] * k + [FP16_UNIT * jump] * (9 - k)
    assert find_loss(chain(*levels), SETTINGS) == ([f"b{k}"], True)


def test_range_is_left_only_where_the_emulation_or_a_sum_says_so() -> None:
    assert not leaves_range(reading(), SETTINGS)
    assert leaves_range(reading(half=nan), SETTINGS)
    assert leaves_range(reading(accumulated=65505.0), SETTINGS)
    assert not leaves_range(reading(accumulated=65504.0), SETTINGS)


def test_what_honest_devices_differ_by_is_no_fault() -> None:
    wrong = reading("a", local=0.3)
    assert faulty(wrong, SETTINGS)
    assert not faulty(replace(wrong, step=0.1), SETTINGS)


def test_noise_that_shows_is_laid_to_where_it_was_made() -> None:
    """Beside its terms it is in line; what it is added to is not, and loses nothing itself."""
    held = replace(off(5e-4), terms=1.0)
    chain = [
        reading("before"),
        replace(reading("cancels", "before"), cumulative=held),
        replace(reading("scales", "cancels"), cumulative=held),
        reading("adds", "before", "scales", cumulative=0.3),
        replace(reading("adds", "adds", cumulative=0.3), tap="output", output=True),
    ]
    assert find_loss(chain, SETTINGS) == (["cancels"], True)
    plain = [replace(r, cumulative=off(5e-4)) if r.noise else r for r in chain]
    assert find_loss(plain, SETTINGS) == (["adds"], True)
