"""What there is to fix in a run, where in the model it may be rewritten, and what a run says of a block."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isclose, isfinite, nan

import numpy as np

from bisect_litert.record import Culprit, RunRecord
from bisect_litert.vocabulary import Cause, Mark, RunName


def faults_of(record: RunRecord) -> tuple[Culprit, ...]:
    """Returns the culprits of a run, and after them what the delegate refused, once per op type and block."""
    refused = [
        Culprit(block, Cause.REJECTED, refusal.op, (f"{refusal.op}: {refusal.reason}",), refusal.advice)
        for refusal in record.placement.refusals
        for block in refusal.blocks or ("(output)",)
    ]
    return (*record.culprits, *refused)


def key_of(culprit: Culprit) -> tuple[str, ...]:
    """What tells one fault from another: neither op indices nor module paths do, since a rewrite moves both."""
    return (culprit.block, culprit.cause, culprit.kind, culprit.source, kind_of(culprit))


def same_fault(one: Culprit, other: Culprit) -> bool:
    """Whether two culprits are one fault, wherever a rewrite has moved its lines."""
    return (one.block, one.cause, one.kind, kind_of(one)) == (other.block, other.cause, other.kind, kind_of(other))


def uncovered(before: RunRecord, after: RunRecord) -> tuple[Culprit, ...]:
    """Returns the culprits of a run that the run before a rewrite did not have."""
    return tuple(c for c in after.culprits if not any(same_fault(c, old) for old in before.culprits))


def refused_in(record: RunRecord, block: str) -> tuple[str, ...]:
    """Returns the types of a block's ops that the delegate refused."""
    return tuple(c.kind for c in faults_of(record) if c.cause is Cause.REJECTED and c.block == block)


def kind_of(culprit: Culprit) -> str:
    """Returns the type of the guilty op; "" when it is not known."""
    return next((op.type for op in culprit.ops if op.index == culprit.op), "")


def another(culprit: Culprit, before: RunRecord, later: Culprit, after: RunRecord) -> bool:
    """Whether what is wrong with a block in a later run is another fault than what was wrong with it before.

    It is not if it is of the same kind and makes the same error: a rewrite that changes nothing moves lines too.
    """
    if key_of(later) == key_of(culprit):
        return False
    if (later.cause, kind_of(later)) != (culprit.cause, kind_of(culprit)):
        return True
    errors = [block_errors(record, culprit.block)[0] for record in (before, after)]
    return any(map(isfinite, errors)) and not isclose(*errors, rel_tol=0.05)


def region_paths(model: object, culprit: Culprit) -> tuple[str, ...]:
    """Returns the modules a culprit may be rewritten in: the one that owns its op, those around it up to the block, and
    the one around the block, where what leaves the block is used."""
    names = dict(model.named_modules())  # type: ignore[attr-defined]
    block = culprit.block.split("@")[0]
    if block not in names:
        return ("",)
    start = culprit.module if culprit.module in names and within(culprit.module, block) else block
    found = [start]
    while found[-1] != block:
        found.append(found[-1].rpartition(".")[0])
    above = block
    while above:
        above = above.rpartition(".")[0]
        if _has_forward(names[above]):
            found.append(above)
            break
    return tuple(path for path in found if _has_forward(names[path]))


def within(path: str, block: str) -> bool:
    """Whether a module is a block or lies in it."""
    return path == block or path.startswith(block + ".")


def lies_in(culprit: Culprit, paths: Iterable[str]) -> bool:
    """Whether the module that owns a culprit's op is one of some modules, or lies in one; "" is the model."""
    owner = culprit.module or culprit.block.split("@")[0]
    return any(not path or within(owner, path) for path in paths)


def _has_forward(module: object) -> bool:
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"  # type: ignore[attr-defined]


def place_of(culprit: Culprit) -> str:
    """Returns where a culprit's op comes from, in a few words."""
    if culprit.cause is Cause.REJECTED:
        return f"{culprit.kind} in {culprit.block}"
    kinds = [op.type for op in culprit.ops if op.index == culprit.op]
    where = ", ".join(part for part in (culprit.module or culprit.block, culprit.source) if part)
    return f"{kinds[0]} in {where}" if kinds else where


def in_words(culprit: Culprit) -> str:
    """Returns a fault as a noun: "an overflow in layers.2", "a wrong kernel in layers.3"."""
    name = culprit.cause.replace("-", " ")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name} in {culprit.block}"


def uncovers(fault: Culprit, why: str) -> str:
    """Returns what is said of a rewrite that is taken back for what it uncovers."""
    return f"uncovers {in_words(fault)}, for which nothing worked" + (f": {why}" if why else "")


def block_errors(record: RunRecord, block: str) -> tuple[float, float]:
    """Returns a block's local relative L2 error on the target, and its ratio.

    Both are nan where they were not measured; the error is inf where something is not finite.
    """
    row = next((b for b in record.blocks if b.name == block), None)
    if row is None:
        return nan, nan
    run = RunName.GPU if RunName.GPU in row.errors else RunName.FP16
    local = row.errors[run].local if run in row.errors else None
    if local is None:
        return nan, row.ratio
    return (local.relative_l2 if local.finite_agreement else inf), row.ratio


def right_in(record: RunRecord, block: str) -> bool:
    """Whether a block was measured and is no culprit; where it is gone, whether the model as a whole is right."""
    row = next((b for b in record.blocks if b.name == block), None)
    if row is None or row.mark is Mark.UNKNOWN:
        return not record.verdict.diverged
    return row.mark is not Mark.CULPRIT


def output_error(record: RunRecord) -> float:
    """Returns the largest relative L2 error of a model output; inf when not finite, nan when none was measured."""
    errors = []
    for output in record.outputs:
        comparison = output.untapped or output.comparison
        if comparison is None:
            continue
        errors.append(comparison.relative_l2 if comparison.finite_agreement else inf)
    return float(np.max(errors)) if errors else nan
