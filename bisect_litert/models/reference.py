"""The truth: eager PyTorch with a tap on every block, and teacher forcing.

Teacher forcing is one more forward in which every tapped tensor is replaced, once it is recorded, by the value some
other run had there. What is recorded at the next tap is then what torch computes from that run's own tensors, so the
difference to that run's value there is that block's own contribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.errors import BisectError, InputsError, UnfitReferenceError
from bisect_litert.measuring.pieces import OnTensor, holds_nan, let_go
from bisect_litert.models import eager, structure
from bisect_litert.models.blocks import Block, module_at
from bisect_litert.models.float64 import Float64, in_float64
from bisect_litert.models.repeating import difference
from bisect_litert.models.shelf import Shelf
from bisect_litert.models.tapped import tapped_copy, watch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TapPoint:
    """One tensor that one call of one block returns."""

    key: str
    """`enc.b3`, with "@2" for the second call and the label of the tensor: `enc.b3@2[1]`."""
    block: str
    """Module path."""
    class_name: str
    call: int
    """From 1; a recursive call counts when it returns, so the innermost is the first."""
    label: str
    """Path inside the block's return value, as `structure.leaves` writes it."""
    order: int
    """How many calls of selected blocks had returned before this one."""
    shape: tuple[int, ...]
    dtype: str
    """numpy's name."""

    @property
    def block_key(self) -> str:
        """The key without the label."""
        return block_key(self.block, self.call)


@dataclass(frozen=True)
class Forward:
    """What one eager forward computed. Arrays are copies taken when the block returned."""

    taps: dict[str, np.ndarray]
    """By `TapPoint.key`: what torch computed, before any replacement; empty where each was looked at instead."""
    points: tuple[TapPoint, ...]
    """In execution order."""
    outputs: dict[str, np.ndarray]
    """The model's own outputs by structure label; "output" for a plain tensor."""
    unforced: tuple[str, ...] = ()
    """Values given that found no place: the call did not happen, or its tensor had another number of elements."""
    problem: str = ""
    """Set when a forced forward failed on the values it was given; the taps before that are there, no outputs."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Not known here; see `measuring.noise`."""
    only_tensors: bool = True
    """Whether the model returns nothing but tensors; what else it returns has no place in a converted graph."""


@dataclass(frozen=True)
class _Model:
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class TorchReference:
    """Runs a model eagerly, as often as needed, always from the same state: buffers, Python state, inputs and seed.

    Args:
        module: The model, in eval mode; it is never run itself, only copies of it are.
        args: Positional inputs.
        kwargs: Keyword inputs.
        blocks: What to tap.
        seed: torch's seed before every forward.
        shelf: Where what forwards compute is kept.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    blocks: Sequence[Block]
    seed: int = 0
    shelf: Shelf = field(default_factory=Shelf, repr=False)
    float64_problem: str = field(default="", init=False)
    """Why the model cannot run in float64; empty while it can or was not tried."""
    _first: Forward | None = field(default=None, init=False, repr=False)
    _double: _Model | None = field(default=None, init=False, repr=False)

    def run(self) -> Forward:
        """Returns the plain forward (run once, then remembered).

        Raises:
            InputsError: The forward fails on these inputs.
        """
        if self._first is None:
            try:
                self._first = self._forward(self._single(), {}, self.seed)
            except BisectError:
                raise
            except Exception as error:
                given = [f"{_position(i)} {_describe(value)}" for i, value in enumerate(self.args)]
                given += [f"{name} {_describe(value)}" for name, value in self.kwargs.items()]
                raise InputsError(
                    f"The model's forward fails on these inputs: {eager.one_line(error)}.",
                    hint=f"Fix the inputs or the model; given: {'; '.join(given) or 'no inputs'}.",
                    detail=eager.user_traceback(error),
                ) from None
        return self._first

    def check(self) -> Forward:
        """Returns the plain forward, which can be compared with.

        Raises:
            InputsError: The forward fails on these inputs.
            UnfitReferenceError: It holds NaN.
        """
        truth = self.run()
        bad = next((key for key, value in {**truth.taps, **truth.outputs}.items() if holds_nan(value)), None)
        if bad is not None:
            raise UnfitReferenceError(
                f"PyTorch's own result holds NaN at {bad}.",
                hint="Fix the model or its inputs first: there is no right answer to compare with.",
            )
        return truth

    def force(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward:
        """Returns a forward with each tapped tensor replaced, after it is recorded.

        Args:
            values: New values by `TapPoint.key`, converted to the tapped tensor's shape and dtype; taps without one
                keep torch's. NaN and infinities are passed on as they are.
            look: Takes what is computed at each tap; nothing is recorded then.
        """
        return self._forced(self._single(), values, look)

    def run64(self, look: OnTensor | None = None) -> Forward | None:
        """Returns the forward in float64, or None with the reason in `float64_problem`."""
        model = self._in_double()
        if model is None:
            return None
        try:
            with Float64():
                return self._forward(model, {}, self.seed, look)
        except Exception as error:
            self.float64_problem = f"The model does not run in float64: {eager.one_line(error)}."
            return None

    def force64(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward | None:
        """Returns the float64 forward with taps replaced as by `force`; None where the model cannot run in float64."""
        model = self._in_double()
        if model is None:
            return None
        with Float64():
            forced = self._forced(model, values, look)
        return forced

    def forget64(self) -> None:
        """Lets go of the float64 copy, which takes twice the model's memory; it is made again when asked for."""
        self._double = None

    def repeatable(self) -> str:
        """Runs again, from another seed, and returns a sentence on what came out different, or "".

        Another seed, because a model that draws random numbers has no result that a converted graph could reproduce.
        """
        first = self.run()
        try:
            where = self._differs(first, self.seed + 1)
            if not where:
                return ""
            again = self._differs(first, self.seed)
        except Exception as error:
            return f"torch runs once and fails when it runs again: {eager.one_line(error)}."
        if not again:
            return f"The model draws random numbers: with another seed {where}."
        return f"torch does not repeat its own result: when it runs again {where}."

    def _differs(self, first: Forward, seed: int) -> str:
        """Returns where another forward differs first, as the end of a sentence, or ""."""
        found: list[str] = []

        def look(key: str, array: np.ndarray) -> None:
            if not found:
                found.append(difference(f"the output of {key}", first.taps.get(key), array))
                found[:] = filter(None, found)

        second = self._forward(self._single(), {}, seed, look)
        if [point.key for point in first.points] != [point.key for point in second.points]:
            return "other blocks are called"
        for key, array in first.outputs.items():
            if not found:
                found += filter(None, [difference(f"the model's {key}", array, second.outputs.get(key))])
        return found[0] if found else ""

    def _single(self) -> _Model:
        return _Model(self.module, self.args, self.kwargs)

    def _in_double(self) -> _Model | None:
        """Returns the model in float64 (made once)."""
        if self.float64_problem:
            return None
        if self._double is None:
            try:
                self._double = _Model(*in_float64(self.module, self.args, self.kwargs))
            except Exception as error:
                self.float64_problem = f"The model cannot be put into float64: {eager.one_line(error)}."
                return None
        return self._double

    def _forced(self, model: _Model, values: Mapping[str, np.ndarray], look: OnTensor | None) -> Forward:
        return self._forward(model, values, self.seed, look, keep_partial=True)

    def _forward(
        self,
        model: _Model,
        values: Mapping[str, np.ndarray],
        seed: int,
        look: OnTensor | None = None,
        *,
        keep_partial: bool = False,
    ) -> Forward:
        module = eager.copy_module(model.module)
        taps: dict[str, np.ndarray] = {}
        points: list[TapPoint] = []
        forced: set[str] = set()
        returned = 0

        def record(block: Block, call: int, output: Any) -> dict[str, torch.Tensor]:
            nonlocal returned
            replacements = {}
            for label, tensor in structure.leaves(output):
                key = block_key(block.name, call) + label
                if look is None:
                    array = taps[key] = self.shelf.keep(eager.to_numpy(tensor))
                else:
                    array = eager.to_numpy(tensor)
                    look(key, array)
                points.append(
                    TapPoint(key, block.name, block.class_name, call, label, returned, array.shape, array.dtype.name)
                )
                value = values.get(key)
                if value is not None and value.size == tensor.numel():
                    replacements[label] = _tensor_like(value, tensor)
                    forced.add(key)
                    let_go(value)
            returned += 1
            return replacements

        for block in self.blocks:
            watch(module_at(module, block.name), block, record)
        try:
            output = eager.call(module, model.args, model.kwargs, seed=seed)
            outputs = _named_outputs(output, [point.key for point in points])
            problem, bare = "", structure.only_tensors(output)
        except Exception as error:
            if not keep_partial or isinstance(error, BisectError):
                raise
            outputs, problem, bare = {}, f"torch fails on the values it was given: {eager.one_line(error)}.", True
        unforced = tuple(key for key in values if key not in forced)
        return Forward(taps, tuple(points), outputs, unforced, problem, only_tensors=bare)


def tapped_module(reference: TorchReference, keys: Sequence[str]) -> torch.nn.Module:
    """Returns a copy of the model that returns (its own output, tuple of the tapped tensors in the order of `keys`).

    It is the model's own class under the same name with the same forward parameters and module paths, so that names in
    a converted graph stay as they are; it works under torch.export and litert_torch.convert.

    Args:
        reference: Knows the model and its taps.
        keys: `TapPoint.key`s.

    Raises:
        UnfitReferenceError: A key that a plain forward does not reach.
    """
    points = {point.key: point for point in reference.run().points}
    missing = [key for key in keys if key not in points]
    if missing:
        raise UnfitReferenceError(
            f"The model has no tap {missing[0]!r}.", hint="Use keys of TorchReference.run().points."
        )
    wanted = {(points[key].block, points[key].call, points[key].label): key for key in keys}
    blocks = [block for block in reference.blocks if any(block.name == name for name, _, _ in wanted)]
    return tapped_copy(reference.module, blocks, wanted, keys)


def block_key(block: str, call: int) -> str:
    """Returns the name of one call of one block."""
    return block if call == 1 else f"{block}@{call}"


def _named_outputs(output: Any, taps: Sequence[str]) -> dict[str, np.ndarray]:
    """By structure label; a plain tensor is "output", or the next free "output_0" where a block has that name."""
    plain = next(n for n in ("output", *(f"output_{i}" for i in range(len(taps) + 1))) if n not in taps)
    return {label or plain: eager.to_numpy(tensor) for label, tensor in structure.leaves(output)}


def _tensor_like(value: np.ndarray, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fresh tensor: later in-place operations must not reach the caller's array, and the strides stay,
    because another memory layout can mean another summation order."""
    import torch

    array = np.array(value, order="C", copy=True)
    return torch.empty_like(tensor).copy_(torch.from_numpy(array).reshape(tensor.shape))


def _position(index: int) -> str:
    return f"input {index}"


def _describe(value: Any) -> str:
    tensors = structure.leaves(value)
    if not tensors:
        return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__
    shapes = [f"{label} {_kind(t)}".strip() for label, t in tensors]
    return ", ".join(shapes)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
