"""Control runs in words: what comes right with ops kept off the GPU, and which stretch of ops has to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bisect_litert.graphs.graph import Op
from bisect_litert.record import Culprit
from bisect_litert.search.counterfactual import Control, Controls
from bisect_litert.verdicts.diagnosis import number
from bisect_litert.vocabulary import Cause

PROVABLE = (Cause.OVERFLOW, Cause.PRECISION_LOSS, Cause.WRONG_KERNEL)
"""Faults that end where their ops leave the GPU."""
LONGEST_REGION = 6
"""Ops that a fused region may reach back: further back the chain that keeps on curing is the fault's input."""


def fused_region(
    ops: Sequence[Op], controls: Controls, limit: float, *, healed: bool = True
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Finds the stretch of ops that is wrong only while nobody looks inside, by keeping ops off the GPU.

    Args:
        ops: A block's, in execution order.
        controls: Control runs of the graph as it ships.
        limit: Relative L2 error from which an output is wrong.
        healed: Whether the block is right when its ops are tapped; else nothing comes back then.

    Returns:
        First and last op, and a sentence; both empty when it was not found, as where no output shows the fault.
    """
    if controls.without(()).right(limit):
        return (), ()
    indices = [op.index for op in ops]
    index = controls.first(ops, lambda control: control.wrong(limit))
    if index is None:
        return (), ()
    start = last = indices.index(index)
    made_by = {t: i for i, op in enumerate(ops) for t in op.outputs}
    # Backwards along the chain that feeds it, as long as keeping one op off the GPU cures the whole.
    while True:
        feeding = [made_by[t] for t in ops[start].inputs if t in made_by]
        cured = next((i for i in reversed(feeding) if controls.without([indices[i]]).right(limit)), None)
        if cured is None or last - cured > LONGEST_REGION:
            break
        start = cured
    tapped = (
        "The block is right when its ops are tapped" if healed else "Its outputs do not come back when it is tapped"
    )
    first, end = ops[start], ops[last]
    ends = f"{first.type} (op {first.index}) and {end.type} (op {end.index})"
    if start == last:
        said = f"wrong as soon as {end.type} (op {end.index}) runs on the GPU."
        return (end.index, end.index), (f"{tapped}, and {'' if healed else 'the model is '}{said}",)
    return (first.index, end.index), (f"{tapped}: the fault lies in the fused region between {ends}.",)


def prove(
    culprits: Sequence[Culprit],
    ops: Mapping[str, Sequence[int]],
    controls: Controls,
    limit: float,
    joined: Mapping[str, Sequence[str]],
) -> list[Culprit]:
    """Keeps culprits off the GPU, looks at the model's outputs, and adds what came of it.

    Args:
        culprits: In data flow order.
        ops: Indices of each culprit's ops, and of those of the blocks it is `joined` with, by block.
        controls: Control runs of the graph as it ships.
        limit: Relative L2 error from which an output is wrong.
        joined: Blocks that read a culprit's inside past its end, by the culprit's block.
    """
    provable = [c for c in culprits if c.cause in PROVABLE]
    if not provable:
        return list(culprits)
    if controls.without(()).right(limit):
        said = "No output of the model shows the fault, so keeping it off the GPU proves nothing."
        return [replace(c, proof=(said,)) if c in provable else c for c in culprits]
    proofs = {c.block: _proof(c, provable, ops, controls, limit, joined.get(c.block, ())) for c in provable}
    return [replace(c, proof=proofs.get(c.block, ())) for c in culprits]


def right_without(which: str, ops: Sequence[int], controls: Controls, limit: float) -> tuple[str, ...]:
    """Says that every output is right with ops kept off the GPU; nothing when one is not.

    Args:
        which: "only op 5", "this block".
        ops: Indices of the ops.
        controls: Control runs of the graph as it ships.
        limit: Relative L2 error from which an output is wrong.
    """
    control = controls.without(ops)
    if not control.right(limit):
        return ()
    said = f"With {which} kept off the GPU every output is right (within {number(control.worst)})."
    return (f"{said}{_split(control)}", *_cut_alone(ops, controls, limit))


def _split(control: Control) -> str:
    return " The graph was split there." if control.split else ""


def _cut_alone(ops: Sequence[int], controls: Controls, limit: float) -> tuple[str, ...]:
    """What the cut does without taking anything off the GPU: the control of the control."""
    apart = controls.apart(ops)
    if apart is None or not apart.ok:
        return ()
    if apart.right(limit):
        return ("Split alike, and all of it on the GPU, it comes right too: the fault needs the ops around it.",)
    return (f"Split alike, and all of it on the GPU, an output is {_off(apart)}.",)


def _off(control: Control) -> str:
    return f"off by {number(control.worst)}" if control.worst == control.worst else "not finite"


def _proof(
    culprit: Culprit,
    provable: Sequence[Culprit],
    ops: Mapping[str, Sequence[int]],
    controls: Controls,
    limit: float,
    joined: Sequence[str],
) -> tuple[str, ...]:
    """What came right, or did not, with a culprit on the CPU: its op alone, its block, or all of them."""
    only = len(provable) == 1
    if only and culprit.op >= 0 and culprit.cause is Cause.WRONG_KERNEL:
        right = right_without(f"only op {culprit.op}", [culprit.op], controls, limit)
        if right:
            return right
    this = f"this block and {', '.join(joined)}, which reads inside it," if joined else "this block"
    right = right_without(this, ops[culprit.block], controls, limit)
    if right:
        return right
    alone = controls.without(ops[culprit.block])
    every = sorted({i for c in provable for i in ops[c.block]})
    which, together = (this, alone) if only else ("all culprits", controls.without(every))
    if together.ok and not together.right(limit) and all(c.cause is Cause.PRECISION_LOSS for c in provable):
        given = "it is" if only else "they are"
        return (
            f"Even with {which} on the CPU an output is {_off(together)}: rounding what {given} given is enough."
            f"{_split(together)}",
        )
    if together.right(limit):
        return right_without(which, every, controls, limit)
    if not together.ok:
        return ()
    if together.worst != together.worst:
        said = "an output is still not finite: its true value may not fit into fp16."
    else:
        said = f"an output is still off by {number(together.worst)}: there is more to it."
    return (f"With {which} kept off the GPU {said}{_split(together)}",)
