"""Hooks that see every call of a block, in eager forwards and under torch.export alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bisect_litert.models import eager, structure
from bisect_litert.models.blocks import ROOT, Block, module_at
from bisect_litert.models.plain import wrap_forward

if TYPE_CHECKING:
    import torch

Recorder = Callable[[Block, int, Any], Mapping[str, "torch.Tensor"]]
"""Given a block, the number of its call and what it returned; returns replacements by structure label."""


def watch(module: torch.nn.Module, block: Block, record: Recorder) -> Callable[[], None]:
    """Has `record` see, and if it wants replace, what every call of a module returns.

    A block that changes its input in place and returns it hands its result on twice: as the return value and through
    everyone else who holds that tensor. A replacement is then written into the tensor, so that both see it; everywhere
    else the original is left alone and a new tensor is returned.

    Returns:
        A function that starts counting the calls from 1 again.
    """
    calls = 0
    before: list[list[tuple[torch.Tensor, int]]] = []

    def enter(_: Any, args: Any, kwargs: Any) -> None:
        # Versions tell changed inputs from merely returned ones; a call that raises leaves an entry nobody looks at.
        before.append([(tensor, _version(tensor)) for _, tensor in structure.leaves((args, kwargs))])

    def leave(_: Any, args: Any, output: Any) -> Any:
        nonlocal calls
        inputs = before.pop() if before else []
        calls += 1
        replacements = dict(record(block, calls, output))
        returned = dict(structure.leaves(output))
        for label in list(replacements):
            tensor = returned[label]
            if any(tensor is given and _version(given) != version for given, version in inputs):
                tensor.copy_(replacements.pop(label))
        return structure.replace(output, replacements) if replacements else None

    def restart() -> None:
        nonlocal calls
        calls = 0
        before.clear()

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)
    return restart


def tapped_copy(
    module: torch.nn.Module, blocks: Sequence[Block], wanted: Mapping[tuple[str, int, str], str], keys: Sequence[str]
) -> torch.nn.Module:
    """Returns a copy whose forward returns (original output, tuple of tapped tensors); of an output that is not made of
    tensors alone, its tensors.

    Args:
        module: The model.
        blocks: The blocks that hold the taps.
        wanted: Tap key by block name, call and label.
        keys: Tap keys in the order of the tuple.
    """
    copy = eager.copy_module(module)
    seen: dict[str, torch.Tensor] = {}

    def record(block: Block, call: int, output: Any) -> dict[str, torch.Tensor]:
        for label, tensor in structure.leaves(output):
            key = wanted.get((block.name, call, label))
            if key is not None:
                seen[key] = tensor.clone()  # before a later in-place operation changes it
        return {}

    restarts = [watch(module_at(copy, block.name), block, record) for block in blocks if block.name != ROOT]
    root = next((block for block in blocks if block.name == ROOT), None)

    def run(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        seen.clear()
        for restart in restarts:
            restart()
        output = inner(*args, **kwargs)
        if root is not None:
            record(root, 1, output)
        if not structure.only_tensors(output):
            output = tuple(tensor for _, tensor in structure.leaves(output))
        return output, tuple(seen[key] for key in keys)

    wrap_forward(copy, run)
    return copy


def _version(tensor: torch.Tensor) -> int:
    try:
        return int(tensor._version)
    except RuntimeError:  # inference tensors keep no version
        return 0
