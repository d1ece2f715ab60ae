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

from bisect_litert.errors import InputsError, UnfitReferenceError
from bisect_litert.measuring.pieces import let_go, pairs
from bisect_litert.models import eager, structure
from bisect_litert.models.blocks import Block, module_at
from bisect_litert.models.shelf import Shelf
from bisect_litert.models.tapped import tapped_copy, watch

if TYPE_CHECKING:
    import torch

REPEAT_LIMIT = 1e-5
"""Largest difference between two eager runs, relative to the tensor's peak, that passes as another summation order
(fp32 has 6e-8 per operation); random numbers and state give differences of order one."""


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
    """By `TapPoint.key`: what torch computed, before any replacement."""
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
            except Exception as error:
                given = [f"{_position(i)} {_describe(value)}" for i, value in enumerate(self.args)]
                given += [f"{name} {_describe(value)}" for name, value in self.kwargs.items()]
                raise InputsError(
                    f"The model's forward fails on these inputs: {eager.one_line(error)}.",
                    hint=f"Fix the inputs or the model; given: {'; '.join(given) or 'no inputs'}.",
                    detail=eager.user_traceback(error),
                ) from None
        return self._first

    def force(self, values: Mapping[str, np.ndarray]) -> Forward:
        """Returns a forward with each tapped tensor replaced, after it is recorded.

        Args:
            values: New values by `TapPoint.key`, converted to the tapped tensor's shape and dtype; taps without one
                keep torch's. NaN and infinities are passed on as they are.
        """
        return self._forced(self._single(), values)

    def run64(self) -> Forward | None:
        """Returns the forward in float64, or None with the reason in `float64_problem`."""
        model = self._in_double()
        if model is None:
            return None
        try:
            with _Float64():
                return self._forward(model, {}, self.seed)
        except Exception as error:
            self.float64_problem = f"The model does not run in float64: {eager.one_line(error)}."
            return None

    def force64(self, values: Mapping[str, np.ndarray]) -> Forward | None:
        """Returns the float64 forward with taps replaced as by `force`; None where the model cannot run in float64."""
        model = self._in_double()
        if model is None:
            return None
        with _Float64():
            forced = self._forced(model, values)
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
            second = self._forward(self._single(), {}, self.seed + 1)
            where = _difference(first, second)
            if not where:
                return ""
            again = self._forward(self._single(), {}, self.seed)
        except Exception as error:
            return f"torch runs once and fails when it runs again: {eager.one_line(error)}."
        if not _difference(first, again):
            return f"The model draws random numbers: with another seed {where}."
        return f"torch does not repeat its own result: when it runs again {where}."

    def _single(self) -> _Model:
        return _Model(self.module, self.args, self.kwargs)

    def _in_double(self) -> _Model | None:
        """Returns the model in float64 (made once)."""
        if self.float64_problem:
            return None
        if self._double is None:
            import torch

            try:
                wide_parameters = {
                    id(p): torch.nn.Parameter(p.detach().double(), p.requires_grad)
                    for p in self.module.parameters()
                    if type(p) is torch.nn.Parameter and p.is_floating_point()
                }
                module = eager.copy_module(self.module, share_parameters=False, known=wide_parameters).double()
                for part in module.modules():  # tensors kept as plain attributes, which .double() does not see
                    for name, value in vars(part).items():
                        if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                            part.__dict__[name] = value.double()
                inputs = (self.args, self.kwargs)
                wide = {k: t.double() for k, t in structure.leaves(inputs) if t.is_floating_point()}
                self._double = _Model(module, *structure.replace(inputs, wide))
            except Exception as error:
                self.float64_problem = f"The model cannot be put into float64: {eager.one_line(error)}."
                return None
        return self._double

    def _forced(self, model: _Model, values: Mapping[str, np.ndarray]) -> Forward:
        return self._forward(model, values, self.seed, keep_partial=True)

    def _forward(
        self, model: _Model, values: Mapping[str, np.ndarray], seed: int, *, keep_partial: bool = False
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
                array = self.shelf.keep(eager.to_numpy(tensor))
                key = block_key(block.name, call) + label
                taps[key] = array
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
            outputs = _named_outputs(eager.call(module, model.args, model.kwargs, seed=seed), taps)
            problem = ""
        except Exception as error:
            if not keep_partial:
                raise
            outputs, problem = {}, f"torch fails on the values it was given: {eager.one_line(error)}."
        unforced = tuple(key for key in values if key not in forced)
        return Forward(taps, tuple(points), outputs, unforced, problem)


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


def _named_outputs(output: Any, taps: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By structure label; a plain tensor is "output", or the next free "output_0" where a block has that name."""
    plain = next(n for n in ("output", *(f"output_{i}" for i in range(len(taps) + 1))) if n not in taps)
    return {label or plain: eager.to_numpy(tensor) for label, tensor in structure.leaves(output)}


def _tensor_like(value: np.ndarray, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a fresh tensor: later in-place operations must not reach the caller's array, and the strides stay,
    because another memory layout can mean another summation order."""
    import torch

    array = np.array(value, order="C", copy=True)
    return torch.empty_like(tensor).copy_(torch.from_numpy(array).reshape(tensor.shape))


def _difference(first: Forward, second: Forward) -> str:
    """Returns where two forwards differ first, as the end of a sentence, or ""."""
    if [point.key for point in first.points] != [point.key for point in second.points]:
        return "other blocks are called"
    named = [(f"the output of {key}", array, second.taps.get(key)) for key, array in first.taps.items()]
    named += [(f"the model's {key}", array, second.outputs.get(key)) for key, array in first.outputs.items()]
    for name, one, other in named:
        if other is None or one.shape != other.shape:
            return f"{name} has another shape"
        distance = peak = 0.0
        for left, right in pairs(_real(one), _real(other)):
            odd = ~np.isfinite(left) | ~np.isfinite(right)
            if odd.any() and not np.array_equal(left[odd], right[odd], equal_nan=left.dtype.kind == "f"):
                return f"{name} is non-finite in other places"
            left, right = left[~odd].astype(np.float64), right[~odd].astype(np.float64)
            distance = max(distance, float(np.max(np.abs(left - right), initial=0.0)))
            peak = max(peak, float(np.max(np.abs(left), initial=0.0)))
        let_go(one, other)
        if distance > REPEAT_LIMIT * peak:
            return f"{name} differs by up to {distance:.3g} (its peak is {peak:.3g})"
    return ""


def _real(values: np.ndarray) -> np.ndarray:
    """Complex numbers as pairs of real ones."""
    return values.reshape(-1).view(values.real.dtype) if np.iscomplexobj(values) else values


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


class _Float64:
    """While active, float32 asked for by name in the model's code means float64, and so does the default dtype.

    Models that upcast inside ("x.float()" in an RMSNorm) would else throw away the digits the float64 run is for.
    """

    def __enter__(self) -> None:
        import torch
        from torch.overrides import TorchFunctionMode

        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        class Mode(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is torch.Tensor.float:
                    function = torch.Tensor.double
                return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})

        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        self._mode = Mode()
        self._mode.__enter__()

    def __exit__(self, *exception: Any) -> None:
        import torch

        self._mode.__exit__(*exception)
        torch.set_default_dtype(self._default)
