"""Which tensors of a block follow from no input of the model: rotary tables, position biases, reassembled weights.

The converter computes those once and keeps what their readers make of it, so that they are no tensors of the converted
graph; no second conversion would bring them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bisect_litert.models import eager, structure
from bisect_litert.models.blocks import Block, module_at
from bisect_litert.models.tapped import watch

if TYPE_CHECKING:
    import torch


def constant_returns(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], blocks: Sequence[Block], seed: int = 0
) -> frozenset[tuple[str, int, str]]:
    """Runs one eager forward and follows the inputs through it, operator by operator.

    In doubt a tensor follows from the inputs. Only a decision (a boolean that Python reads) is not followed: it is the
    same one whenever the model is traced with these inputs.

    Returns:
        Name of the block, number of its call (from 1) and label of the tensor, of each that follows from no input;
        empty when the forward fails.
    """
    copy = eager.copy_module(module)
    follower = _follower()
    found: set[tuple[str, int, str]] = set()

    def record(block: Block, call: int, output: Any) -> dict[str, torch.Tensor]:
        found.update((block.name, call, label) for label, t in structure.leaves(output) if not follower.reaches(t))
        return {}

    def enter(_: Any, given: Any, named: Any) -> None:
        follower.start(tensor for _, tensor in structure.leaves((given, named)))

    copy.register_forward_pre_hook(enter, with_kwargs=True)
    for block in blocks:
        watch(module_at(copy, block.name), block, record)
    try:
        with follower:
            eager.call(copy, args, kwargs, seed=seed)
    except Exception:  # the model ran without being followed; what cannot be followed is no constant
        return frozenset()
    return frozenset(found)


def _follower() -> Any:
    """Returns the mode that sees every operator; its class needs torch to be made."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def tensors(value: Any) -> Iterator[torch.Tensor]:
        return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))

    class Follower(TorchDispatchMode):
        """Knows which memory holds what follows from the inputs; views share theirs."""

        def __init__(self) -> None:
            super().__init__()
            self._reached: set[Any] = set()
            """Weak references, which keep an address from being given out again."""
            self._escaped = False
            """Whether Python has read a number that follows from the inputs: from then on it may be anywhere."""

        def start(self, given: Iterator[torch.Tensor]) -> None:
            self._mark(given)

        def reaches(self, tensor: torch.Tensor) -> bool:
            held = self._held(tensor)
            return held is None or held in self._reached

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = kwargs or {}
            follows = self._escaped or any(map(self.reaches, tensors((args, named))))
            result = func(*args, **named)
            if follows:
                returned = list(tensors(result))
                self._mark(returned)
                self._mark(_written(func, args, named))
                decision = isinstance(result, bool)
                self._escaped = self._escaped or not (returned or decision or result is None)
            return result

        def _mark(self, found: Any) -> None:
            self._reached.update(held for held in map(self._held, found) if held is not None)

        def _held(self, tensor: torch.Tensor) -> Any:
            try:
                return StorageWeakRef(tensor.untyped_storage())
            except (NotImplementedError, RuntimeError):  # sparse tensors have none
                return None

    def _written(func: Any, args: Any, named: Any) -> Iterator[torch.Tensor]:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from tensors(value)
        for argument in func._schema.arguments:
            if argument.name in named and argument.alias_info is not None and argument.alias_info.is_write:
                yield from tensors(named[argument.name])

    return Follower()
