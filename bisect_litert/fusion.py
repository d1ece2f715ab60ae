"""The last rung of the ladder: a fault that goes away whenever it is looked at is found without any taps.

Ops 0..N on the GPU and the rest on the CPU: the model's own outputs then tell whether the fault lies up to N, and
halving finds the
op with which it comes, in a number of compiles logarithmic in the graph's length.
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
    op = graph.ops[index]
    block = next((name for name, ops in block_ops.items() if any(o.index == index for o in ops)), "")
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
