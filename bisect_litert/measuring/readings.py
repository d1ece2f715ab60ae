"""From the runs' tensors to readings: cumulative and local errors at every tap, by one forced torch forward per run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bisect_litert.block_record import Comparison, RunErrors
from bisect_litert.graphs.emulation import allowance
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.metrics import compare_by_scale
from bisect_litert.measuring.pieces import OnTensor, let_go
from bisect_litert.search.culprits import Reading
from bisect_litert.taps.tapper import Layout
from bisect_litert.vocabulary import RunName, TapOrigin

OUTPUT = "(output)"
"""Block name of the model's own outputs: what follows the last block."""


class Forward(Protocol):
    """One torch forward: tensors at taps by key, and the model's outputs by label."""

    @property
    def taps(self) -> dict[str, np.ndarray]:
        """What torch computed at each tap."""
        ...

    @property
    def outputs(self) -> dict[str, np.ndarray]:
        """What the model returned; empty when a forced forward failed on its way."""
        ...

    @property
    def terms(self) -> Mapping[str, float]:
        """Where it is noise, what errors are relative to (noise.py), by tap key or output label."""
        ...


class Force(Protocol):
    """Runs the reference with the given tensors put in place of the blocks' outputs."""

    def __call__(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward:
        """Returns what it computed before each replacement, or shows each tap and keeps none."""
        ...


@dataclass(frozen=True, slots=True)
class Tap:
    """A tensor of a block's output and where the graph holds it."""

    key: str
    block: str
    """Block call, "enc.b3" or "enc.b3@2"."""
    module: str
    class_name: str
    call: int
    label: str
    shape: tuple[int, ...]
    dtype: str
    origin: TapOrigin
    tensor: int = -1
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """What one run gave, in PyTorch's layout."""

    taps: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    unwritten: Mapping[str, int] = field(default_factory=dict)
    """Elements that were never written, by tap key or output label."""


@dataclass(frozen=True, slots=True)
class Errors:
    """One run against torch: cumulative and local, by tap key; outputs by label."""

    cumulative: Mapping[str, Comparison]
    local: Mapping[str, Comparison]
    output_cumulative: Mapping[str, Comparison]
    output_local: Mapping[str, Comparison]


def measure(
    values: Values,
    truth: Forward,
    force: Force,
    healed: Mapping[str, np.ndarray] = {},
) -> Errors:
    """Prices every tap of a run with one forced torch forward, each as soon as torch has computed it, so that none of
    its tensors is kept.

    Args:
        values: The run's tensors.
        truth: Torch's own forward.
        force: Runs torch with the given tensors put in place of the blocks' outputs, and shows what it computed before
            each replacement.
        healed: Tensors that the run itself was given in place of its own.
    """
    cumulative: dict[str, Comparison] = {}
    local: dict[str, Comparison] = {}

    def look(key: str, computed: np.ndarray) -> None:
        if key in values.taps:
            value = values.taps[key]
            local.update(compare_all({key: computed}, {key: value}, values, truth.terms))
            cumulative.update(compare_all(truth.taps, {key: value}, values, truth.terms))

    forced = force(_Overlaid(healed, values.taps), look)
    for key in values.taps.keys() - cumulative.keys():
        cumulative.update(compare_all(truth.taps, {key: values.taps[key]}, values, truth.terms))
    return Errors(
        cumulative={key: cumulative[key] for key in values.taps if key in cumulative},
        local={key: local[key] for key in values.taps if key in local},
        output_cumulative=compare_all(truth.outputs, values.outputs, values, truth.terms),
        output_local=compare_all(forced.outputs, values.outputs, values, truth.terms),
    )


@dataclass(frozen=True)
class _Overlaid(Mapping[str, np.ndarray]):
    """Tensors with others in their place; each is asked for only when it is needed, and may be computed then."""

    over: Mapping[str, np.ndarray]
    under: Mapping[str, np.ndarray]

    def __getitem__(self, key: str) -> np.ndarray:
        return self.over[key] if key in self.over else self.under[key]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.under, *self.over]))

    def __len__(self) -> int:
        return len(self.over.keys() | self.under.keys())


def compare_all(
    reference: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray], values: Values, terms: Mapping[str, float]
) -> dict[str, Comparison]:
    """Compares the tensors of one name and size.

    Args:
        reference: By tap key or output label.
        target: Likewise.
        values: The run that `target` is of.
        terms: What errors are relative to where the reference is noise.
    """
    found = {}
    for key, value in target.items():
        if key in reference and reference[key].size == value.size:
            found[key] = compare_by_scale(
                reference=reference[key],
                target=value,
                unwritten=values.unwritten.get(key, 0),
                terms=terms.get(key, 0.0),
            )
            let_go(reference[key], value)
    return found


def flow(
    graph: Graph, taps: Sequence[Tap], outputs: Mapping[str, int]
) -> dict[str, tuple[tuple[str, ...], float, int]]:
    """Reads off the graph what lies behind each tap and output.

    Returns:
        By tap key or output label: the taps it directly follows from, the allowance for fp16 accumulation, and the
        number of ops. One follows from a tap, too, when it reads the inside of that tap's block past its end, as the
        converter has it where it moves factors or joins slices.
    """
    at: dict[int, list[str]] = {}
    for tap in taps:
        if tap.tensor >= 0:
            at.setdefault(tap.tensor, []).append(tap.key)
    found: dict[str, tuple[tuple[str, ...], float, int]] = {}
    seen_at: dict[int, str] = {}
    targets = [(tap.key, tap.tensor, tap.block) for tap in taps if tap.tensor >= 0]
    targets += [(label, tensor, OUTPUT) for label, tensor in outputs.items()]
    made_by: dict[int, tuple[str, str]] = {}
    """By op, the first tap that needs it, and that tap's block."""
    for key, tensor, block in targets:
        if tensor in seen_at:
            # The same tensor under a second name adds nothing of its own.
            found[key] = ((seen_at[tensor],), 1.0, 0)
            continue
        ops = graph.inside([tensor], at)
        for op in ops:
            made_by.setdefault(op.index, (key, block))
        parents = [k for t in sorted(graph.sources([tensor], at)) for k in at.get(t, ())[-1:]]
        for op in ops:
            if made_by[op.index] == (key, block):
                makers = [
                    made_by.get(graph.producer[t].index) for t in op.inputs if t in graph.producer and t not in at
                ]
                parents += [maker[0] for maker in makers if maker is not None and maker[1] != block]
        found[key] = (tuple(dict.fromkeys(parents)), allowance(graph, ops), len(ops))
        seen_at[tensor] = key
    return found


@dataclass(frozen=True, slots=True)
class OtherWeights:
    """Where the file that was given was made from other weights than the model's."""

    names: tuple[str, ...] = ()
    """Parameters that differ, by the module's names."""
    sentence: str = ""

    def within(self, block: str) -> bool:
        """Whether some of them belong to a block's module."""
        own = block.split("@")[0]
        return any(name.startswith(f"{own}.") or name == own for name in self.names)


@dataclass(frozen=True, slots=True)
class Runs:
    """Errors of every run of one round that has them."""

    target: Errors
    rounding: Errors | None
    half: Errors | None
    cpu: Errors | None
    fp32: Errors | None = None
    uncontrolled: bool = False
    """Whether the fp32 control was wanted and could not be run."""


def build(
    taps: Sequence[Tap],
    outputs: Mapping[str, str],
    runs: Runs,
    links: Mapping[str, tuple[tuple[str, ...], float, int]],
    fp32_cost: Mapping[str, float],
    healed: frozenset[str] = frozenset(),
    steps: Mapping[str, float] = {},
) -> list[Reading]:
    """Puts what every run says of each tap side by side, in data flow order, the model's outputs last.

    Args:
        taps: In execution order.
        outputs: The block each model output belongs to, by label.
        runs: What was measured.
        links: What `flow` read off the graph.
        fp32_cost: Local relative L2 error of torch in fp32, by tap key or output label.
        healed: Taps whose consumers were given torch's own value.
        steps: What honest devices may differ by whatever their precision, by tap key or output label.
    """

    def reading(key: str, block: str, output: bool) -> Reading:
        def local(run: Errors | None) -> Comparison | None:
            return _known((run.output_local if output else run.local) if run else None, key)

        parents, factor, _ = links.get(key, ((), 1.0, 0))
        cumulative = runs.target.output_cumulative if output else runs.target.cumulative
        return Reading(
            tap=key,
            block=block,
            parents=parents,
            cumulative=cumulative.get(key),
            local=local(runs.target),
            expected=local(runs.rounding),
            half=local(runs.half),
            allowance=factor,
            cpu=local(runs.cpu),
            fp32_cost=fp32_cost.get(key, 0.0),
            step=steps.get(key, 0.0),
            fp32=local(runs.fp32),
            fp32_ran=runs.fp32 is not None,
            uncontrolled=runs.uncontrolled,
            output=output,
            healed=key in healed and not output,
        )

    return [
        *(reading(tap.key, tap.block, output=False) for tap in taps),
        *(reading(label, owner, output=True) for label, owner in outputs.items()),
    ]


def _known(found: Mapping[str, Comparison] | None, key: str) -> Comparison | None:
    """A comparison that says something: with nothing finite left on the reference side it says nothing of the block."""
    comparison = found.get(key) if found else None
    if comparison is None or (comparison.elements and comparison.reference_nonfinite == comparison.elements):
        return None
    return comparison


def worst(errors: Mapping[str, Comparison], keys: Sequence[str]) -> Comparison | None:
    """The worst of several tensors: anything newly non-finite first, then the largest relative L2 error."""
    known = [errors[k] for k in keys if k in errors]
    return max(known, key=lambda c: (c.new_nonfinite > 0 or c.unwritten > 0, by_size(c.relative_l2)), default=None)


def by_size(value: float) -> float:
    """Returns an error as what it is sorted by: NaN is the worst."""
    return float("inf") if value != value else value


def block_errors(runs: Mapping[RunName, Errors], keys: Sequence[str], output: bool) -> dict[RunName, RunErrors]:
    """Returns each run's errors at one block."""
    return {
        name: RunErrors(
            cumulative=worst(errors.output_cumulative if output else errors.cumulative, keys),
            local=worst(errors.output_local if output else errors.local, keys),
        )
        for name, errors in runs.items()
    }
