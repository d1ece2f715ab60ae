"""The last rung of the ladder: what goes away when it is looked at, or kills the runtime, is found without any taps.

Ops 0..N on the GPU and the rest on the CPU: the model's own outputs then tell whether the fault lies up to N, and
halving finds the op with which it comes, in a number of compiles logarithmic in the graph's length. A runtime that has
no switch for that runs graphs that end at one tensor: at the ends of blocks first, then inside one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.record import Culprit
from bisect_litert.search.counterfactual import Control, Controls
from bisect_litert.search.proving import right_without
from bisect_litert.verdicts import advice
from bisect_litert.verdicts.diagnosis import number
from bisect_litert.vocabulary import Cause


def localise(
    controls: Controls, graph: Graph, block_ops: Mapping[str, Sequence[Op]], ends: Iterable[int], limit: float
) -> Culprit | None:
    """Finds the op with which the shipped graph's outputs go wrong.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        block_ops: The ops of each block.
        ends: The blocks' output tensors.
        limit: Relative L2 error from which an output is wrong.

    Returns:
        A tap-effect culprit, or None when the outputs are right or no part of the graph shows the fault.
    """
    if not graph.ops or controls.without(()).right(limit):
        return None
    index = controls.first(graph.ops, lambda control: control.wrong(limit), ends)
    if index is None:
        return None
    op, block = graph.ops[index], _block_of(index, block_ops)
    if not block:
        return None
    here, exact = controls.up_to(index), controls.up_to(index, fp32=True)
    evidence = [
        f"With {_up_to(here, index)} on the GPU and the rest on the CPU an output is off by {number(here.worst)}, with "
        f"one op less none is: the fault comes with {op.type} (op {index}) and goes when its block is tapped."
    ]
    if exact.ok and exact.right(limit):
        evidence.append("In fp32 the GPU is right there: fp16 is the reason.")
    elif exact.ok:
        evidence.append("In fp32 the GPU is wrong there as well: a kernel is the reason.")
    return Culprit(
        block=block,
        cause=Cause.TAP_EFFECT,
        kind="",
        evidence=tuple(evidence),
        advice=advice.default(Cause.TAP_EFFECT),
        op=index,
        region=(index, index),
        proof=right_without(f"only op {index}", [index], controls, limit),
    )


def localise_death(
    controls: Controls,
    graph: Graph,
    block_ops: Mapping[str, Sequence[Op]],
    ends: Iterable[int],
    cause: Cause,
    said: str,
) -> Culprit | None:
    """Finds the op with which the runtime crashes or hangs.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        block_ops: The ops of each block.
        ends: The blocks' output tensors.
        cause: `Cause.CRASH` or `Cause.HANG`.
        said: How the whole graph's run ended.

    Returns:
        The culprit; None when the runtime lives with any part of the graph on the GPU, or with none of it.
    """
    index = controls.first(graph.ops, lambda control: control.died, ends)
    here = controls.up_to(index) if index is not None else None
    if index is None or here is None or not here.died:
        return None
    op, block = graph.ops[index], _block_of(index, block_ops)
    less = "without it" if here.split else f"with ops 0 to {index - 1} on the GPU"
    before = f"{less} it lives" if index else "it is the first op"
    evidence = (
        f"The run of the whole graph ended with: {said}.",
        f"With {_up_to(here, index)} on the GPU and the rest on the CPU the runtime dies as well, {before}: {op.type} "
        f"(op {index}) is what it dies of.{_without_elements(graph, op)}",
    )
    lives = controls.without([index]).ok
    proof = (f"With only op {index} kept off the GPU the runtime lives.",) if lives else ()
    return Culprit(block, cause, "", evidence, advice.default(cause), op=index, region=(index, index), proof=proof)


def _without_elements(graph: Graph, op: Op) -> str:
    """A sentence on a tensor of an op that holds nothing, which GPUs have no texture for."""
    shapes = [graph.tensors[t].shape for t in (*op.outputs, *op.inputs) if t >= 0]
    empty = next((shape for shape in shapes if 0 in shape), None)
    return (
        f" Its tensor of shape {list(empty)} holds no element: leave it out of the graph." if empty is not None else ""
    )


def localise_invalid(
    controls: Controls, graph: Graph, block_ops: Mapping[str, Sequence[Op]], ends: Iterable[int], limit: float
) -> Culprit | None:
    """Finds the op whose commands the GPU refuses, with which it drops all others handed in together with them.

    So every tensor of such a run is void, that of the first op too, and none tells where it went wrong.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        block_ops: The ops of each block.
        ends: The blocks' output tensors.
        limit: Relative L2 error from which an output is wrong.

    Returns:
        The culprit; None when the GPU takes the commands, or the outputs are right all the same, or no op could be
        told from the others.
    """
    whole = controls.without(())
    if not whole.invalid or whole.right(limit):
        return None
    index = controls.first(graph.ops, lambda control: bool(control.invalid) if control.ok else None, ends)
    here = controls.up_to(index) if index is not None else None
    if index is None or here is None or not here.invalid:
        return None
    op, block = graph.ops[index], _block_of(index, block_ops)
    before = "with one op less it does not" if index else "it is the first op"
    evidence = (
        f"The GPU refuses commands it is given ({whole.invalid.rstrip('.')}) and drops all that came with them, so "
        "nothing that the run returns was computed.",
        f"With {_up_to(here, index)} on the GPU and the rest on the CPU it does so too, {before}: {op.type} "
        f"(op {index}) is what it refuses.",
    )
    proof = right_without(f"only op {index}", [index], controls, limit)
    return Culprit(
        block,
        Cause.WRONG_KERNEL,
        "",
        evidence,
        advice.default(Cause.WRONG_KERNEL),
        op=index,
        region=(index, index),
        proof=proof,
    )


def localise_refusal(controls: Controls, graph: Graph, ends: Iterable[int]) -> tuple[Op, bool] | None:
    """Finds the op that the delegate takes and then cannot build, so that nothing runs.

    Args:
        controls: Control runs of the shipped graph.
        graph: That graph.
        ends: The blocks' output tensors.

    Returns:
        The op, and whether the rest runs with that op kept off the GPU; None when no op could be told from the others.
    """
    index = controls.first(graph.ops, lambda control: not control.ok, ends)
    if index is None or controls.up_to(index).ok:
        return None
    runs = controls.without([index]).ok
    return (graph.ops[index], runs) if runs or index else None


def _up_to(control: Control, index: int) -> str:
    return f"op {index} and what it follows from (the graph was split there)" if control.split else f"ops 0 to {index}"


def _block_of(index: int, block_ops: Mapping[str, Sequence[Op]]) -> str:
    return next((name for name, ops in block_ops.items() if any(o.index == index for o in ops)), "")
