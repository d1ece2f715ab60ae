"""From block to op to line: looks into each culprit and says what its ops, its source and control runs add."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan

from bisect_litert.block_record import OpResult
from bisect_litert.graphs.emulation import allowance
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.evaluation import GPU
from bisect_litert.measuring.metrics import FP16_UNIT, out_of_line
from bisect_litert.record import Culprit, Settings
from bisect_litert.search.counterfactual import Controls
from bisect_litert.search.culprits import UNEXPLAINED, Reading
from bisect_litert.search.pricing import MAX_OPS, OpPrice, Priced, Pricer, Scene
from bisect_litert.search.proving import PROVABLE, fused_region, prove
from bisect_litert.search.sources import OpSources, Place
from bisect_litert.verdicts import advice, diagnosis
from bisect_litert.verdicts.confidence import Circumstances, confidence
from bisect_litert.verdicts.diagnosis import number
from bisect_litert.vocabulary import NO_CONTROL, OTHER_WEIGHTS, Cause, Mark

MAX_LOOKED_INTO = 6
"""Culprits beyond these are named but not opened: the first ones are what a person acts on."""


@dataclass(frozen=True)
class Tools:
    """What looking inside needs."""

    pricer: Pricer
    sources: OpSources
    controls: Controls | None
    """Control runs on the graph as it ships; None when the taps live in another graph or nothing runs on a GPU."""
    graph: Graph
    blocks: Sequence[str]
    """The selected blocks' calls."""
    classes: Mapping[str, str]
    """Class name by module path."""
    around: Circumstances
    settings: Settings
    say: Callable[[str], None]
    """Told which culprit is being looked into."""
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Blocks that cannot be told from a culprit, by the culprit's block: what proves it is to leave them out, too."""


def look_inside(culprits: Sequence[Culprit], scenes: dict[str, Scene], tools: Tools) -> list[Culprit]:
    """Adds op, region, module, source line, proof and confidence to culprits.

    Whatever cannot be measured is left empty; a culprit never gets worse by being looked into.
    """
    found = []
    for position, culprit in enumerate(culprits):
        scene = scenes.get(culprit.block)
        if position < MAX_LOOKED_INTO and scene is not None:
            tools.say(culprit.block)
            culprit = _open(culprit, scene, tools)
        found.append(culprit)
    if tools.controls is not None:
        groups = {c.block: (c.block, *tools.joined.get(c.block, ())) for c in found}
        ops = {b: sorted({op.index for m in own for op in tools.pricer.ops_of(m)}) for b, own in groups.items()}
        found = prove(found, ops, tools.controls, tools.settings.output_limit, tools.joined)
    known = [_advised(c, scenes.get(c.block), tools) for c in found]
    taps = tools.pricer.case.taps
    unread = {t.block for t in taps} - {t.block for t in taps if t.tensor >= 0}
    return _unique(_relocated(c, tools.blocks, unread) for c in known)


def _unique(culprits: Iterable[Culprit]) -> list[Culprit]:
    """Drops a culprit whose block another one of the same cause was traced to before it."""
    found: dict[tuple[str, Cause], Culprit] = {}
    for culprit in culprits:
        found.setdefault((culprit.block, culprit.cause), culprit)
    return list(found.values())


def _advised(culprit: Culprit, scene: Scene | None, tools: Tools) -> Culprit:
    """Adds the rewrite that fits, the known issue, and how sure the verdict is."""
    entry = advice.ask(_query(culprit, tools))
    if entry is not None:
        culprit = replace(culprit, advice=entry.text, upstream=entry.reference)
    reading = scene.reading if scene else None
    divisible = any(name.startswith(f"{culprit.block.split('@')[0]}.") for name in tools.classes)
    word, why = confidence(culprit, reading, tools.around, tools.settings, divisible=divisible)
    return replace(culprit, confidence=word, confidence_reason=why)


def _query(culprit: Culprit, tools: Tools) -> advice.Query:
    """Puts together what is known of a culprit and, where it was found, of its op."""
    known = advice.Query(
        cause=culprit.cause.value,
        kind=culprit.kind,
        op=culprit.operator,
        module_class=tools.classes.get(culprit.module, tools.classes.get(culprit.block.split("@")[0], "")),
        reason=" ".join(culprit.evidence),  # which quotes what the GPU said
    )
    op = next((o for o in culprit.ops if o.index == culprit.op), None)
    if op is None:
        return known
    operands = [tools.graph.tensors[t] for t in tools.graph.ops[culprit.op].inputs if t >= 0]
    constants = [t for t in operands if t.constant]
    return replace(
        known,
        op=op.type,
        rank=len(op.shape),
        constant_operand=bool(constants),
        constant_rows=any(t.shape and t.shape[0] > 1 for t in constants),
        mixed_ranks=len({len(t.shape) for t in operands}) > 1,
        longest=max((n for shape in (op.shape, *(t.shape for t in operands)) for n in shape), default=0),
    )


def _open(culprit: Culprit, scene: Scene, tools: Tools) -> Culprit:
    """Finds a culprit's op, or the operator that the conversion lost."""
    if culprit.kind == OTHER_WEIGHTS:
        return culprit
    if culprit.cause is Cause.CONVERSION:
        return _with_lost_operator(culprit, tools)
    if culprit.cause not in PROVABLE:
        return culprit
    priced = tools.pricer.price(scene)
    if priced is None:
        count = len(tools.pricer.ops_of(culprit.block))
        if count <= MAX_OPS:
            return culprit
        said = f"It has {count} ops, too many to look into at once ({MAX_OPS}): choose smaller blocks to find its op."
        return replace(culprit, evidence=(*culprit.evidence, said))
    ops = [p.op for p in priced.ops]
    places = tools.sources.places(ops, culprit.block)
    guilty = priced.guilty
    extra: tuple[str, ...] = priced.evidence
    if guilty < 0 or culprit.kind == "underflow":
        # No op is wrong at its own operands: 1/0 is infinite anywhere. The range says which one made the zero.
        guilty = culprit.op if culprit.op in {op.index for op in ops} else guilty
    if culprit.cause is Cause.WRONG_KERNEL and tools.controls is not None:
        behind = _behind(guilty, priced.ops, tools.graph, tools.controls, tools.settings.output_limit)
        if behind is not None:
            reader, guilty = guilty, behind.index
            extra = (*extra, _unread(behind, next(op for op in ops if op.index == reader)))
    region: tuple[int, ...] = ()
    if not priced.persists and tools.controls is not None:
        region, told = fused_region(ops, tools.controls, tools.settings.output_limit, healed=priced.readable)
        guilty, extra = (region[-1] if region else -1), (*extra, *told)
    results = tuple(_result(p, places.get(p.op.index, Place()), tools.graph, guilty) for p in priced.ops)
    culprit = replace(culprit, ops=results)
    if guilty < 0:
        return replace(culprit, evidence=(*culprit.evidence, *extra))
    place = places.get(guilty, Place())
    culprit = _settled(culprit, next(p for p in priced.ops if p.op.index == guilty), scene.reading, tools)
    return replace(
        culprit,
        op=guilty,
        region=region,
        module=place.module,
        source=place.source,
        code=place.excerpt,
        evidence=(*culprit.evidence, *_op_evidence(priced, guilty), *extra),
    )


def _with_lost_operator(culprit: Culprit, tools: Tools) -> Culprit:
    lost = tools.sources.first_lost(culprit.block)
    if lost is None:
        return culprit
    said = f"The first operator whose value the .tflite file no longer has: {lost.code or lost.module}."
    return replace(
        culprit,
        module=lost.module,
        source=lost.source,
        code=lost.excerpt,
        operator=lost.operator,
        evidence=(*culprit.evidence, said),
    )


def _behind(guilty: int, prices: Sequence[OpPrice], graph: Graph, controls: Controls, output_limit: float) -> Op | None:
    """Finds the op that made what the guilty one reads and nobody can read back, where that is the one to blame.

    Integers and booleans are not tapped, so an op that reads them is held against what the CPU makes of them: a wrong
    comparison shows at the SELECT or CAST behind it. Keeping one op off the GPU tells the two apart.
    """
    own = {p.op.index: p.op for p in prices}
    made_by = {t: op for op in own.values() for t in op.outputs}
    found: list[Op] = []
    ahead = [own[guilty]] if guilty in own else []
    while ahead:
        unread = [t for t in ahead.pop(0).inputs if t in made_by and not graph.tensors[t].is_real]
        more = [made_by[t] for t in unread if made_by[t] not in found]
        found += more
        ahead += more
    if not found or controls.without(()).right(output_limit) or controls.without([guilty]).right(output_limit):
        return None
    return next((op for op in found if controls.without([op.index]).right(output_limit)), None)


def _unread(behind: Op, reader: Op) -> str:
    return (
        f"{reader.type} (op {reader.index}) shows it, at what {behind.type} (op {behind.index}) hands it and cannot be "
        "read back; keeping one at a time off the GPU tells them apart."
    )


def _settled(culprit: Culprit, guilty: OpPrice, reading: Reading, tools: Tools) -> Culprit:
    """Without an fp32 control, lets the guilty op tell lost digits from a wrong kernel.

    A block holds sums of all lengths, and long ones may cost in fp16 what a wrong kernel does; an op that adds up
    nothing cannot.
    """
    doubtful = culprit.cause in (Cause.PRECISION_LOSS, Cause.WRONG_KERNEL) and reading.uncontrolled
    if not doubtful or not guilty.wrong:
        return culprit
    room = max(UNEXPLAINED, 2 * allowance(tools.graph, [guilty.op]) ** 2 * FP16_UNIT)
    cause = Cause.WRONG_KERNEL if out_of_line(guilty.local, room) else Cause.PRECISION_LOSS
    if cause is culprit.cause:
        return culprit
    kind = NO_CONTROL if cause is Cause.WRONG_KERNEL else ""
    sentences = diagnosis.evidence(reading, cause, tools.settings, None, "", GPU)
    return replace(culprit, cause=cause, kind=kind, evidence=sentences, advice=advice.default(cause, kind))


def _relocated(culprit: Culprit, blocks: Sequence[str], unread: Collection[str]) -> Culprit:
    """Moves a culprit to the block its op belongs to, where that is not the one whose output showed the fault.

    Code of a parent that runs between its children shows at the next child's output. The parent is to blame, if it
    was selected. So is a block that returns nothing that can be read back (booleans, integers). Any other block is
    over by then, or has not begun: a name that says so was joined of several.
    """
    own, module = culprit.block.split("@")[0], culprit.module
    if not module or module == own or module.startswith(own + "."):
        return culprit
    silent = [b for b in unread if module == b.split("@")[0] or module.startswith(b.split("@")[0] + ".")]
    if len(silent) == 1:  # of several calls nothing tells which one it was
        said = (
            f"The op lies in {silent[0]}, whose own output is not tapped; it showed at the output of {culprit.block}."
        )
        return replace(culprit, block=silent[0], evidence=(*culprit.evidence, said))
    around = [b for b in blocks if own.startswith(b.split("@")[0] + ".")]
    parents = [b for b in around if module == b.split("@")[0] or module.startswith(b.split("@")[0] + ".")]
    if not parents:
        said = f"The op lies in {module}, in code that runs before {culprit.block}."
        return replace(culprit, evidence=(*culprit.evidence, said))
    parent = max(parents, key=len)
    said = f"The op lies in {parent}'s own code; it showed at the output of {culprit.block}."
    return replace(culprit, block=parent, evidence=(*culprit.evidence, said))


def _result(price: OpPrice, place: Place, graph: Graph, guilty: int) -> OpResult:
    op, tensors = price.op, graph.tensors
    out = op.outputs[0] if op.outputs else -1
    mark = Mark.CULPRIT if op.index == guilty else Mark.NOTE if price.wrong else Mark.OK
    return OpResult(
        index=op.index,
        type=op.type,
        tensor=tensors[out].name if out >= 0 else "",
        shape=tensors[out].shape if out >= 0 else (),
        inputs=tuple(tensors[t].shape for t in op.inputs),
        module=place.module,
        source=place.source,
        code=place.code,
        local=price.local,
        reference_peak=price.peak,
        accumulated=price.accumulated,
        contribution=price.contribution,
        mark=Mark.UNKNOWN if price.local is None and mark is Mark.OK else mark,
    )


def _op_evidence(priced: Priced, guilty: int) -> tuple[str, ...]:
    if priced.told and guilty == priced.guilty:
        return (priced.told,)
    price = next(p for p in priced.ops if p.op.index == guilty)
    others = [p.local.relative_l2 for p in priced.ops if p.local is not None and not p.wrong and p.op.index != guilty]
    quiet = max((v for v in others if v == v), default=nan)
    name = f"{price.op.type} (op {guilty})"
    if guilty == priced.guilty and price.local is not None:
        bad = price.local
        what = (
            f"{bad.new_nonfinite} new non-finite values" if bad.new_nonfinite else f"off by {number(bad.relative_l2)}"
        )
        first = f"Of the {len(priced.ops)} ops inside, {name} is the first that is" if others else f"{name} is"
        rest = f"; those in line are within {number(quiet)}" if others else ""
        return (f"{first} wrong at its own operands ({what}){rest}.",)
    return ()
