"""`--predict`: load, torch, prediction, record. No conversion and no GPU (docs/prediction.md)."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from math import isinf, isnan, nan

from bisect_litert.block_record import BlockResult, RangeInfo
from bisect_litert.models import model_file
from bisect_litert.models.blocks import select
from bisect_litert.models.preparation import describe_inputs
from bisect_litert.models.reference import TorchReference
from bisect_litert.programs.magnitudes import Magnitude
from bisect_litert.programs.nodes import Node
from bisect_litert.programs.prediction import BlockPrediction, Prediction, predict
from bisect_litert.record import Culprit, Placement, RunInfo, RunRecord, Verdict
from bisect_litert.records import environment
from bisect_litert.reports.outcome import PREDICTED
from bisect_litert.request import BisectRequest, OnProgress, Progress
from bisect_litert.verdicts import advice
from bisect_litert.vocabulary import Cause, Mark, Residency

_LITERT = {
    "pow": "POW",
    "mul": "MUL",
    "add": "ADD",
    "sub": "SUB",
    "div": "DIV",
    "sum": "SUM",
    "mean": "MEAN",
    "exp": "EXP",
    "log": "LOG",
    "rsqrt": "RSQRT",
    "bmm": "BATCH_MATMUL",
    "addmm": "FULLY_CONNECTED",
    "mm": "FULLY_CONNECTED",
    "convolution": "CONV_2D",
}
"""Names under which the advice knows an operator."""
_BLIND = "A prediction sees neither wrong kernels nor lost digits; a run without --predict does."


def run_prediction(request: BisectRequest, on_progress: OnProgress) -> RunRecord:
    """Predicts which blocks will leave fp16's range; writes nothing.

    Args:
        request: What to do; everything about GPU, taps and folders in it is ignored.
        on_progress: Told of every stage.

    Raises:
        BisectError: The model cannot be loaded, run or exported.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    on_progress(Progress("load model", state="start"))
    loaded = model_file.load(request.model, inputs_path=request.inputs, seed=request.seed)
    blocks = select(loaded.module, request.blocks)
    on_progress(Progress("torch", state="start"))
    TorchReference(loaded.module, loaded.args, loaded.kwargs, blocks, request.seed).check()
    torch_seconds = time.monotonic() - clock
    on_progress(Progress("predict", state="start"))
    predicted = predict(loaded.module, loaded.args, loaded.kwargs, blocks)
    seconds = time.monotonic() - clock
    on_progress(Progress("predict", state="done"))
    culprits = tuple(_culprit(block) for block in predicted.leaving)
    return RunRecord(
        model=loaded.label,
        target=PREDICTED,
        verdict=_verdict(predicted, culprits, loaded.notes),
        culprits=culprits,
        blocks=tuple(_block(block, order) for order, block in enumerate(predicted.blocks)),
        outputs=(),
        runs=(RunInfo("torch", "ok", torch_seconds), RunInfo("prediction", "ok", seconds - torch_seconds)),
        inputs=tuple(describe_inputs(loaded)),
        placement=Placement("", 0, 0, "No GPU was used: --predict stops before the conversion."),
        environment=environment.describe(),
        settings=request.settings(),
        seconds=seconds,
        started=started.isoformat(timespec="seconds"),
    )


def _verdict(predicted: Prediction, culprits: tuple[Culprit, ...], notes: tuple[str, ...]) -> Verdict:
    if culprits:
        first, block = culprits[0], predicted.leaving[0]
        summary = f"{block.name} will leave fp16's range. {first.evidence[0]}"
        return Verdict(Cause.OVERFLOW, True, summary, first.advice, notes)
    largest = max((b for b in predicted.blocks if b.peak.value), key=lambda b: b.peak.value, default=None)
    summary = "No block is predicted to leave fp16's range."
    if largest is not None:
        harmless = ", which no output suffers from" if largest.headroom < 1 else ""
        summary += f" The largest value is {largest.peak.value:.3g} in {largest.name}{harmless}; fp16 ends at 65504."
    large = [b for b in predicted.blocks if b.largest_sum.value > 65504 and b.headroom >= 1]
    if large:
        worst = max(large, key=lambda b: b.largest_sum.value)
        many = f" in {len(large)} blocks" if len(large) > 1 else ""
        notes = (
            *notes,
            f"Sums of magnitudes pass 65504{many}, up to {worst.largest_sum.value:.3g} at "
            f"{place(worst.largest_sum.node)} in {worst.name}: a GPU that accumulates in fp16 may overflow there.",
        )
    return Verdict(Cause.NONE, False, summary, _BLIND, notes)


def _culprit(block: BlockPrediction) -> Culprit:
    node = block.origin
    module_class = (node.module_class if node else "") or block.class_name
    kind = "" if block.kind == "overflow" else block.kind
    op = _LITERT.get(node.target.split(".")[1] if node and "." in node.target else "", "")
    entry = advice.ask(advice.Query(Cause.OVERFLOW.value, kind, op, module_class, len(node.shape) if node else None))
    off = "is not finite" if isinf(block.half) else f"is off by {block.half:.2g} (relative L2)"
    cost = f"Held in fp16, the block's output {off}, where rounding to 11 bits alone costs {block.significand:.2g}."
    evidence = (_sentence(block), cost)
    return Culprit(
        block=block.name,
        cause=Cause.OVERFLOW,
        kind=kind,
        evidence=evidence,
        advice=entry.text if entry else "",
        operator=node.target if node else "",
        module=node.module if node else "",
        source=node.source if node else "",
        code=node.excerpt() if node else "",
        upstream=entry.reference if entry else "",
    )


def _sentence(block: BlockPrediction) -> str:
    where = place(block.origin) or "An operator in it"
    if block.kind == "underflow":
        return f"{where} gives or reads numbers that fp16 holds as 0 (it ends at 6e-8), and what follows needs them."
    if block.origin_peak > 65504:
        return f"{where} reaches {block.origin_peak:.3g}, and fp16 ends at 65504."
    return f"{where} reads numbers beyond 65504, where fp16 ends."


def _block(block: BlockPrediction, order: int) -> BlockResult:
    module, _, call = block.name.partition("@")
    mark = Mark.CULPRIT if block.leaves_range else Mark.AFTER if block.after else Mark.OK
    ranges = RangeInfo(
        peak=block.peak.value,
        peak_at=_at(block.peak),
        headroom=block.headroom,
        largest_sum=block.largest_sum.value,
        sum_at=_at(block.largest_sum),
        largest_squares=block.largest_squares.value,
        squares_at=_at(block.largest_squares),
        smallest=block.smallest.value,
        smallest_at=_at(block.smallest),
        half=block.half,
        significand=block.significand,
        leaves_range=block.leaves_range,
    )
    return BlockResult(
        name=block.name,
        module=module,
        class_name=block.class_name,
        call=int(call) if call else 1,
        order=order,
        taps=(),
        ops=0,
        residency=Residency.UNKNOWN,
        mark=mark,
        cause=Cause.OVERFLOW if block.leaves_range else Cause.NONE,
        errors={},
        expected=block.significand,
        allowance=1.0,
        ratio=nan,
        amplification=nan,
        ranges=ranges,
    )


def _at(magnitude: Magnitude) -> str:
    known = bool(magnitude.value) and not isnan(magnitude.value)
    return (place(magnitude.node) or "an input of the model") if known else ""


def place(node: Node | None) -> str:
    """Returns "aten.mul.Tensor, model.py:41"; empty for no node."""
    return ", ".join(part for part in (node.target, node.source) if part) if node else ""
