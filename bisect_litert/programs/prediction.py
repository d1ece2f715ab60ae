"""Which block will leave fp16's range, from torch alone: no conversion, no GPU (docs/prediction.md).

The exported operators are run three times: in fp32, with every result rounded to fp16, and with fp16's 11 significant
bits but no end of its range. A block that is off in the second and in line in the third leaves the range. Each block
is judged at its own inputs: what other blocks hand on is replaced by torch's own value, so that one fault does not
hide the next.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.graphs.emulation import Rounding
from bisect_litert.measuring.metrics import FP16_MAX, compare
from bisect_litert.measuring.readings import OUTPUT
from bisect_litert.models.blocks import ROOT, Block
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.magnitudes import Extremes, Magnitude, measure
from bisect_litert.programs.nodes import Node
from bisect_litert.programs.rounded_graph import as_array, is_float
from bisect_litert.programs.unstored import fused

if TYPE_CHECKING:
    import torch

FACTOR = 10.0
"""How many times what significand rounding costs counts as far off; the ratio limit of a run."""
LEAST = 5e-3
"""Relative L2 error below which nothing is far off; ten half units in the last place of fp16."""


@dataclass(frozen=True)
class BlockPrediction:
    """What fp16's range means to one block."""

    name: str
    """Module path, with "@2" for a second call; "(output)" for what lies outside all blocks before an output."""
    class_name: str
    peak: Magnitude
    """Largest finite |value| of its operators' results, and of the model's inputs that it reads."""
    largest_sum: Magnitude
    """Largest sum of magnitudes that a reduction, matrix product or convolution in it adds up: no partial sum in any
    order can be larger. 0 when nothing is summed."""
    largest_squares: Magnitude
    """Largest sum of squares among these, of centred values in a norm that centres; 0 without any."""
    smallest: Magnitude
    """Smallest |value| above 0 that fp16 would hold as 0; nan when there is none."""
    half: float
    """Relative L2 error of its outputs when every result is rounded to fp16; inf when they are not finite."""
    significand: float
    """The same when only fp16's 11 significant bits are kept."""
    leaves_range: bool
    kind: str = ""
    """"overflow" or "underflow" when it leaves the range, else empty."""
    origin: Node | None = None
    """The first operator whose result, held in fp16, puts the block's output far off."""
    origin_peak: float = nan
    """Largest |value| of that operator's result in fp32; nan without one."""
    after: str = ""
    """Name of the block that answers for it: one before it that hands on values beyond fp16's range, one inside it, or
    one that reads the same faulty operator earlier. Else empty."""

    @property
    def headroom(self) -> float:
        """65504 / peak: how many times larger the values could get; below 1 some pass the range."""
        return FP16_MAX / self.peak.value if self.peak.value else inf


@dataclass(frozen=True)
class Prediction:
    """What fp16's range means to a model on these inputs."""

    blocks: tuple[BlockPrediction, ...]
    """In execution order."""

    @property
    def leaving(self) -> tuple[BlockPrediction, ...]:
        """The blocks that leave the range, first first."""
        return tuple(block for block in self.blocks if block.leaves_range)


def predict(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], blocks: Sequence[Block]
) -> Prediction:
    """Predicts from torch alone which blocks leave fp16's range.

    Args:
        module: The model, in eval mode.
        args: Positional inputs.
        kwargs: Keyword inputs.
        blocks: The blocks to name; a block inside another one is judged apart from it.

    Raises:
        ExportError: torch.export cannot trace the model.
    """
    return _Predictor(ExportedModel(module, args, kwargs), blocks).run()


class _Predictor:
    def __init__(self, model: ExportedModel, blocks: Sequence[Block]) -> None:
        self.model = model
        self.nodes = {node.name: node for node in model.nodes()}
        self.classes = {block.name: block.class_name for block in blocks}
        self.fused = fused(tuple(self.nodes.values()))
        self.members, self.edges = self._assign()
        self.reference: dict[str, np.ndarray] = {}
        """fp32 values of all edges."""
        self.lost: frozenset[str] = frozenset()
        """Edges that fp16 cannot hold; blocks behind them are judged on torch's value, range and all."""

    def run(self) -> Prediction:
        extremes = self._measure()
        significand = self._errors(Rounding.SIGNIFICAND, {})
        half = self._errors(Rounding.HALF, significand)
        self.lost = frozenset(name for name in half if is_off(half[name], significand[name]))
        found: list[BlockPrediction] = []
        for name, members in self.members.items():
            errors = (_worst(half, self.edges[name]), _worst(significand, self.edges[name]))
            origin, kind = self._origin(name, errors[1]) if is_off(*errors) else (None, "")
            seen = Extremes()
            for member in (*members, *self._inputs_of(members)):
                seen.include(extremes.get(member, Extremes()))
            found.append(
                BlockPrediction(
                    name=name,
                    class_name=self.classes.get(name.partition("@")[0], ""),
                    peak=seen.peak,
                    largest_sum=seen.largest_sum,
                    largest_squares=seen.largest_squares,
                    smallest=seen.smallest,
                    half=errors[0],
                    significand=errors[1],
                    leaves_range=is_off(*errors),
                    kind=kind,
                    origin=origin,
                    origin_peak=extremes[origin.name].peak.value if origin and origin.name in extremes else nan,
                )
            )
        return Prediction(tuple(self._once(found)))

    def _once(self, found: Sequence[BlockPrediction]) -> Iterator[BlockPrediction]:
        """Lets one block answer for each cause: the innermost that holds the operator, else the first that reads it."""
        answers: dict[str, str] = {}
        for block in sorted(found, key=lambda b: (len(self.members[b.name]), -b.name.count("."))):
            if block.origin and block.origin.name in self.members[block.name]:
                answers.setdefault(block.origin.name, block.name)
        for block in found:
            if block.leaves_range:
                own = answers.setdefault(block.origin.name, block.name) if block.origin else block.name
                after = self._beyond(self.members[block.name]) or (own if own != block.name else "")
                block = replace(block, after=after, leaves_range=not after)
            yield block

    def _assign(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Returns each block call's nodes, and those of them that leave it, in execution order."""
        users: dict[str, list[str]] = {}
        members: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for source in node.inputs:
                users.setdefault(source, []).append(node.name)
            for name in (*([ROOT] if ROOT in self.classes else []), *node.within):
                if name.partition("@")[0] in self.classes:
                    members.setdefault(name, []).append(node.name)
        outputs = set(self.model.outputs)
        edges: dict[str, list[str]] = {}
        for name, inside in members.items():
            own = set(inside)
            edges[name] = [n for n in inside if n in outputs or any(user not in own for user in users.get(n, []))]
        taken = {n for names in edges.values() for n in names}
        rest = [n for n in self.model.outputs if n in self.nodes and n not in taken]
        if rest:
            members[OUTPUT] = [n for n in self._cone(rest, taken) if n not in taken]
            edges[OUTPUT] = rest
        return members, edges

    def _measure(self) -> dict[str, Extremes]:
        """Runs fp32: keeps what the edges gave, and every node's extremes."""
        wanted = {n for names in self.edges.values() for n in names}
        extremes: dict[str, Extremes] = {}

        def see(node: Node, result: Any, args: Any, kwargs: Any) -> None:
            if is_float(result):
                if not node.constant and node.name not in self.fused.inside:
                    extremes[node.name] = measure(self.nodes, node, result, args, kwargs)
                if node.name in wanted:
                    self.reference[node.name] = as_array(result)

        self.model.walk(see)
        for name, value in self.model.inputs().items():
            extremes[name] = measure(self.nodes, None, value, (), {})
        return extremes

    def _inputs_of(self, members: Iterable[str]) -> list[str]:
        read = {source for member in members for source in self.nodes[member].inputs}
        return [name for name in self.model.inputs() if name in read]

    def _errors(self, rounding: Rounding, allowed: Mapping[str, float]) -> dict[str, float]:
        """Runs with rounding, each block at fp32's own inputs, and returns the error of every edge."""
        errors: dict[str, float] = {}

        def see(node: Node, result: Any, *_: Any) -> None:
            if node.name in self.reference:
                errors[node.name] = _error(self.reference[node.name], as_array(result))

        def hand_on(name: str) -> Rounding:
            return Rounding.SIGNIFICAND if is_off(errors[name], allowed.get(name, inf)) else rounding

        self.model.walk(
            see,
            rounding=lambda name: None if name in self.fused.inside else rounding,
            force=self.reference,
            hand_on=hand_on,
            exact=self.fused.factors,
        )
        return errors

    def _origin(self, name: str, allowed: float) -> tuple[Node | None, str]:
        """Finds the first operator that has to be held in fp16 for the block's output to be far off.

        The operators up to some point are rounded to fp16, those behind it keep their range; the point at which the
        output goes off is found by bisection. A mask that becomes -inf in front of a softmax moves nothing.
        """
        targets = self.edges[name]
        forced = {n: v for n, v in self.reference.items() if n not in targets}
        cone = self._cone(targets, forced)
        steps = [n for n in cone if not self.nodes[n].constant]
        only = set(cone)
        read = {source for n in steps for source in self.nodes[n].inputs}
        steps = [n for n in self.model.inputs() if n in read] + [n for n in forced if n in read] + steps

        def off(count: int) -> bool:
            chosen = set(steps[:count]) - self.lost.difference(targets)
            return is_off(self._replay(targets, chosen, forced, only), allowed)

        low, high = 0, len(steps)  # off(high) holds, off(low) does not
        if not off(high):
            return None, ""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if off(middle) else (middle, high)
        at = steps[high - 1]
        node = self.nodes[at if at in only else next(n for n in cone if at in self.nodes[n].inputs)]
        return node, self._kind(at, forced, only)

    def _beyond(self, members: Sequence[str]) -> str:
        """Returns the block that hands these nodes a value no fp16 number can hold, as torch has it; "" if none."""
        read = {source for member in members for source in self.nodes[member].inputs}
        for name, edges in self.edges.items():
            for edge in edges:
                if edge in read and edge in self.lost and edge not in members:
                    with np.errstate(over="ignore"):
                        if not np.isfinite(self.reference[edge].astype(np.float16)).all():
                            return name
        return ""

    def _replay(
        self, targets: Sequence[str], half: Container[str], forced: Mapping[str, np.ndarray], only: Container[str]
    ) -> float:
        """Returns the targets' error when the nodes in `half` are held in fp16 and the others keep their range."""
        errors: dict[str, float] = {}

        def see(node: Node, result: Any, *_: Any) -> None:
            if node.name in targets and node.name in self.reference:
                errors[node.name] = _error(self.reference[node.name], as_array(result))

        def rounding(name: str) -> Rounding | None:
            if name in self.fused.inside:
                return None
            return Rounding.HALF if name in half else Rounding.SIGNIFICAND

        self.model.walk(see, rounding=rounding, force=forced, only=only, exact=self.fused.factors)
        return _worst(errors, targets)

    def _kind(self, at: str, forced: Mapping[str, np.ndarray], only: Container[str]) -> str:
        """Tells too large from too small: by the operator's values in fp32, and by the numbers it reads."""
        peaks = [nan]

        def see(node: Node, result: Any, args: Any, kwargs: Any) -> None:
            if node.name == at or (at not in only and at in node.inputs):
                values = [result, *args, *kwargs.values()] if node.name == at else list(args)
                numbers = [abs(v) for v in values if type(v) in (int, float)]
                tensors = [as_array(v) for v in values if is_float(v)]
                peaks.extend(numbers)
                peaks.extend(float(np.abs(t[np.isfinite(t)]).max(initial=0.0)) for t in tensors)

        self.model.walk(see, force=forced, only=only)
        return "overflow" if np.nanmax(peaks) > FP16_MAX * (1 + 2.0**-12) else "underflow"

    def _cone(self, targets: Iterable[str], stop: Container[str]) -> list[str]:
        """Returns the nodes that the targets need, in execution order, without going past the nodes in `stop`."""
        pending, found = list(targets), set[str]()
        while pending:
            name = pending.pop()
            if name in found or name not in self.nodes:
                continue
            found.add(name)
            pending += [source for source in self.nodes[name].inputs if source not in stop]
        return [name for name in self.nodes if name in found]


def is_off(half: float, significand: float) -> bool:
    """Whether fp16 costs far more than its digits alone do."""
    return half > max(LEAST, FACTOR * significand)


def _error(reference: np.ndarray, target: np.ndarray) -> float:
    found = compare(reference=reference, target=target)
    if found.new_nonfinite:
        return inf
    return found.relative_l2 if found.relative_l2 == found.relative_l2 else 0.0  # nothing finite to compare: equal


def _worst(errors: Mapping[str, float], names: Iterable[str]) -> float:
    return max((errors[name] for name in names if name in errors), default=0.0)
