"""report.md: the whole run for a bug report, as GitHub renders it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isnan

from bisect_litert.block_record import BlockResult
from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.markdown_text import code as _code
from bisect_litert.reports.markdown_text import row as _row
from bisect_litert.reports.markdown_text import text as _text
from bisect_litert.reports.outcome import (
    cause_words,
    headline,
    is_emulated,
    local_on_target,
    on_target,
    target_run,
    target_words,
    truth_name,
)
from bisect_litert.vocabulary import PYTORCH, Cause, RunName

FOLD_ABOVE = 30
PLOT_FILE = "divergence.png"


def render(record: RunRecord) -> str:
    """Returns the report of a run."""
    sections = [
        _verdict(record),
        _culprits(record),
        _plot(record),
        _blocks(record),
        _ruled_out(record),
        _runs(record),
        _environment(record),
        _reproduce(record),
    ]
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def summary(record: RunRecord) -> str:
    """Returns the verdict and the culprits only."""
    return "\n\n".join("\n".join(lines) for s in (_verdict(record), _culprits(record)) if (lines := list(s))) + "\n"


def _verdict(record: RunRecord) -> Iterator[str]:
    yield f"# {_text(record.model)}: {_text(headline(record))}"
    yield ""
    if is_emulated(record):
        how = "The file ran on the CPU" if record.settings.fp32 else "Every tensor was rounded to fp16 on the CPU"
        yield f"> **{record.target}**: no GPU was tested. {how} instead."
        yield ""
    yield _text(record.verdict.summary)
    if record.verdict.next_step:
        yield ""
        yield f"**Next:** {_text(record.verdict.next_step)}"
    if record.verdict.notes:
        yield ""
        yield from (f"- Note: {_text(note)}" for note in record.verdict.notes)


def _culprits(record: RunRecord) -> Iterator[str]:
    if not record.culprits:
        return
    yield "## Culprits" if len(record.culprits) > 1 else "## Culprit"
    classes = {block.name: block.class_name for block in record.blocks}
    for number, culprit in enumerate(record.culprits, 1):
        what = f" ({_text(classes[culprit.block])})" if classes.get(culprit.block) else ""
        hidden = "; shows once the culprits before it are healed" if culprit.hidden else ""
        yield ""
        yield f"{number}. {_code(culprit.block)}{what}: **{cause_words(culprit.cause, culprit.kind)}**{hidden}"
        op = next((o for o in culprit.ops if o.index == culprit.op), None)
        spot = [f"{op.type} (op {op.index})" if op else culprit.operator, culprit.module, culprit.source]
        if any(spot):
            yield "   - At " + ", ".join(_code(word) for word in spot if word)
        if culprit.code:
            yield from ("", "     ```python", *(f"     {row}" for row in culprit.code.splitlines()), "     ```", "")
        yield from (f"   - {_text(sentence)}" for sentence in (*culprit.evidence, *culprit.proof))
        if culprit.confidence:
            yield f"   - Confidence **{culprit.confidence}**: {_text(culprit.confidence_reason)}"
        if culprit.upstream:
            yield f"   - Known upstream: {_text(culprit.upstream)}"
        if culprit.advice:
            yield f"   - Try: {_text(culprit.advice)}"


def _plot(record: RunRecord) -> Iterator[str]:
    if PLOT_FILE in record.files.values():
        yield f"![Error by depth: cumulative, local and expected]({PLOT_FILE})"


def _blocks(record: RunRecord) -> Iterator[str]:
    if not record.blocks:
        return
    yield f"## Blocks against {truth_name(record)}: {target_words(record)}"
    yield ""
    folded = len(record.blocks) > FOLD_ABOVE
    if folded:
        leading = _leading(record)
        if leading:
            yield from block_table(record, [leading])
            yield ""
        yield f"<details><summary>All {len(record.blocks)} blocks</summary>"
        yield ""
    yield from block_table(record, record.blocks)
    if folded:
        yield ""
        yield "</details>"
    yield ""
    yield (
        f"Relative L2 against {truth_name(record)}; *local* is the block's own error, at the inputs it had on the "
        "target; *expected* is what rounding to fp16 costs; ratio = local / expected."
    )


def block_table(record: RunRecord, blocks: Sequence[BlockResult]) -> Iterator[str]:
    """Yields the table of some of a record's blocks."""
    titles = "block, class, corr, rel L2, local, expected, ratio, peak |ref|, non-finite, zeros, ran on, mark"
    columns = titles.split(", ")
    yield _row(columns)
    yield "| --- | --- |" + " ---: |" * (len(columns) - 4) + " --- | --- |"
    for block in blocks:
        total, local = on_target(record, block), local_on_target(record, block)
        mark = f"{formats.SYMBOLS[block.mark]} {block.mark.value}"
        if block.cause is not Cause.NONE:
            mark = f"**{mark}: {cause_words(block.cause)}**"
        yield _row(
            [
                _code(block.name),
                _text(block.class_name),
                formats.correlation(total.correlation) if total else "",
                formats.number(total.relative_l2) if total else "",
                formats.number(local.relative_l2) if local else "",
                _known(block.expected),
                _known(block.ratio),
                formats.number(total.reference_peak) if total else "",
                str(total.nonfinite) if total else "",
                formats.share_of_zeros(total) if total else "",
                block.residency.value,
                mark,
            ]
        )


def _ruled_out(record: RunRecord) -> Iterator[str]:
    lines = list(exclusions(record))
    if lines:
        yield "## Ruled out"
        yield ""
        yield from (f"- {line}" for line in lines)


def exclusions(record: RunRecord) -> Iterator[str]:
    """Yields what the other runs exclude, each with the number that does; nothing is claimed that no run showed."""
    leading, cause = _leading(record), record.verdict.cause
    if leading is None:
        return
    where, limit = _code(leading.name), record.settings.output_limit
    cpu = _local_of(leading, RunName.CPU, limit)
    if cpu and cause is not Cause.CONVERSION and record.reference == PYTORCH:
        yield f"**Conversion**, by the `cpu` run: the .tflite on the CPU is within {cpu} of torch at {where}."
    fp32 = _local_of(leading, RunName.GPU_FP32, limit)
    if fp32 and cause in (Cause.OVERFLOW, Cause.PRECISION_LOSS, Cause.PRECISION_COMPOUNDING):
        yield f"**A wrong kernel**, by the `gpu-fp32` run: with fp32 arithmetic the GPU is within {fp32} at {where}."
    fp16 = _local_of(leading, RunName.FP16, limit)
    if fp16 and cause is Cause.WRONG_KERNEL:
        yield f"**Ordinary fp16 rounding**, by the `fp16` run: rounding every tensor costs {fp16} at {where}."
    same = [o for o in record.outputs if o.comparison and o.untapped and o.comparison == o.untapped]
    if same and len(same) == len(record.outputs) and cause is not Cause.TAP_EFFECT and not is_emulated(record):
        far = f"as far from {truth_name(record)} as the tapped ones"
        yield f"**The taps**, by the untapped `gpu` run: its outputs are {far}."


def _local_of(block: BlockResult, run: RunName, limit: float) -> str:
    errors = block.errors.get(run)
    local = errors.local or errors.cumulative if errors else None
    if local is None or not local.finite_agreement or isnan(local.relative_l2) or local.relative_l2 > limit:
        return ""
    return formats.number(local.relative_l2)


def _runs(record: RunRecord) -> Iterator[str]:
    if not record.runs:
        return
    yield "## Runs"
    yield ""
    yield "| run | status | time | detail |"
    yield "| --- | --- | ---: | --- |"
    for run in record.runs:
        log = f" ([log]({run.log}))" if run.log and re.fullmatch(r"[\w./-]+", run.log) else ""
        judged = " (judged)" if run.name == target_run(record).value else ""
        yield _row([_code(run.name) + judged, run.status, formats.seconds(run.seconds), _text(run.detail) + log])
    if record.outputs:
        yield ""
        yield "| model output | rel L2 | untapped | expected |"
        yield "| --- | ---: | ---: | ---: |"
        for output in record.outputs:
            numbers = [c.relative_l2 if c else None for c in (output.comparison, output.untapped)]
            cells = ["" if n is None else formats.number(n) for n in numbers]
            yield _row([_code(output.name), *cells, _known(output.expected)])


def _environment(record: RunRecord) -> Iterator[str]:
    yield "## Environment"
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    for info in record.inputs:
        yield _row(["input", _text(formats.input_line(info))])
    yield _row(["adapter", _text(record.placement.adapter or "none")])
    if record.placement.line:
        yield _row(["placement", _text(record.placement.line)])
    for refusal in record.placement.refusals:
        where = f" in {', '.join(map(_code, refusal.blocks))}" if refusal.blocks else ""
        yield _row(["refused", f"{_code(refusal.op)} ×{refusal.count}{where}: {_text(refusal.reason)}"])
    for error in record.placement.validation_errors:
        yield _row(["validation error", _text(error)])
    for name, value in record.environment.items():
        yield _row([_text(name), _text(value)])
    yield _row(["started", record.started])
    yield _row(["took", formats.seconds(record.seconds)])


def _reproduce(record: RunRecord) -> Iterator[str]:
    yield "## Reproduce"
    yield ""
    yield "```sh"
    # A fence can only be closed by a line of its own, and a command is one line.
    yield formats.clean(formats.run_command(record)).replace("\n", " ")
    yield "```"


def _leading(record: RunRecord) -> BlockResult | None:
    first = record.culprits[0].block if record.culprits else None
    return next((block for block in record.blocks if block.name == first), None)


def _known(value: float) -> str:
    return "" if isnan(value) else formats.number(value)
