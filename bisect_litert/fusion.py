"""The last rung of the ladder: what goes away when it is looked at, or kills the runtime, is found without any taps.

Ops 0..N on the GPU and the rest on the CPU: the model's own outputs then tell whether the fault lies up to N, and
halving finds the op with which it comes, in a number of compiles logarithmic in the graph's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bisect_litert import diagnosis
from bisect_litert.counterfactual import Controls, first_wrong
from bisect_litert.diagnosis import number
from bisect_litert.graph import Graph, Op
from bisect_litert.record import Cause, Culprit


def localise(controls: Controls, graph: Graph, block_ops: Mapping[str, Sequence[Op]], limit: float) -> Culprit | None:
    """Finds the op with which the shipped graph's outputs go wrong.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        block_ops: The ops of each block.
        limit: Relative L2 error from which an output is wrong.

    Returns:
        A tap-effect culprit, or None when the runtime has no such switch or the outputs are right.
    """
    if not graph.ops or controls.without(()).right(limit):
        return None

    def wrong(last: int) -> bool | None:
        control = controls.up_to(last)
        return not control.right(limit) if control.ok else None

    index = first_wrong(len(graph.ops) - 1, wrong)
    if index is None:
        return None
    op, block = graph.ops[index], _block_of(index, block_ops)
    if not block:
        return None
    here, exact = controls.up_to(index), controls.up_to(index, fp32=True)
    evidence = [
        f"With ops 0 to {index} on the GPU and the rest on the CPU an output is off by {number(here.worst)}, with one "
        f"op less none is: the fault comes with {op.type} (op {index}) and goes when its block is tapped."
    ]
    if exact.ok and exact.right(limit):
        evidence.append("In fp32 the GPU is right there: fp16 is the reason.")
    elif exact.ok:
        evidence.append("In fp32 the GPU is wrong there as well: a kernel is the reason.")
    alone = controls.without([index])
    proof = (f"With only op {index} kept off the GPU every output is right.",) if alone.right(limit) else ()
    return Culprit(
        block=block,
        cause=Cause.TAP_EFFECT,
        kind="",
        evidence=tuple(evidence),
        advice=diagnosis.advice(Cause.TAP_EFFECT, ""),
        op=index,
        region=(index, index),
        proof=proof,
    )


def localise_death(
    controls: Controls, graph: Graph, block_ops: Mapping[str, Sequence[Op]], cause: Cause, said: str
) -> Culprit | None:
    """Finds the op with which the runtime crashes or hangs.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        block_ops: The ops of each block.
        cause: `Cause.CRASH` or `Cause.HANG`.
        said: How the whole graph's run ended.

    Returns:
        The culprit; None when the runtime lives with any part of the graph on the GPU, or with none of it.
    """
    if not graph.ops:
        return None
    index = first_wrong(len(graph.ops) - 1, lambda last: controls.up_to(last).died)
    if index is None or not controls.up_to(index).died:
        return None
    op, block = graph.ops[index], _block_of(index, block_ops)
    before = f"with ops 0 to {index - 1} on the GPU it lives" if index else "it is the first op"
    evidence = (
        f"The run of the whole graph ended with: {said}.",
        f"With ops 0 to {index} on the GPU and the rest on the CPU the runtime dies as well, {before}: {op.type} "
        f"(op {index}) is what it dies of.",
    )
    lives = not controls.without([index]).died
    proof = (f"With only op {index} kept off the GPU the runtime lives.",) if lives else ()
    return Culprit(
        block, cause, "", evidence, diagnosis.advice(cause, ""), op=index, region=(index, index), proof=proof
    )


def _block_of(index: int, block_ops: Mapping[str, Sequence[Op]]) -> str:
    return next((name for name, ops in block_ops.items() if any(o.index == index for o in ops)), "")
