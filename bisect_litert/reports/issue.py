"""ISSUE.md: what an upstream maintainer reads first, short enough for GitHub, with its title line ready to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from bisect_litert.block_record import BlockResult
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import formats, markdown
from bisect_litert.reports.markdown_text import code as _code
from bisect_litert.reports.markdown_text import row as _row
from bisect_litert.reports.markdown_text import text as _text
from bisect_litert.reports.outcome import cause_words, is_emulated
from bisect_litert.vocabulary import NO_CONTROL, Cause, RunName

MAX_LENGTH = 60_000
"""GitHub takes 65536 characters."""
MAX_OUTPUT = 6_000
NEIGHBOURS = 6
"""Blocks before and after the culprit that the table shows; report.md has all."""

ALONE, IN_CONTEXT, NOT_ALONE, NOT_TRIED = "alone", "in context", "not alone", "not tried"
PREDICTED, NO_TWIN = "predicted", "none"


@dataclass(frozen=True)
class TwinReport:
    """What became of the PyTorch twin."""

    state: str
    """"alone", "not alone" (it is right outside the model), "not tried", or "none"."""
    what: str = ""
    """What of the model it holds."""
    why: str = ""
    """Why it was not tried, or why there is none."""
    weights: str = ""
    """What stands in for the model's weights; empty for the weights themselves."""
    inputs: str = ""
    output: str = ""
    """What repro_torch.py printed."""


@dataclass(frozen=True)
class Repro:
    """What became of the reproduction."""

    state: str
    """"alone", "in context", "not alone" (it is right outside the model), "not tried", or "predicted" (by emulated
    fp16, and seen on no GPU)."""
    why: str = ""
    """Why it was not tried, or not seen."""
    ops: tuple[str, ...] = ()
    """One line per op: its type and operand shapes."""
    output: str = ""
    """What repro.py printed."""
    model_bytes: int = 0
    weights: str = ""
    """What stands in the file in place of the model's weights; empty for the weights themselves."""
    inputs: str = ""
    versions: tuple[tuple[str, str, str], ...] = ()
    """Runtime, adapter and result of each try."""
    sizes: tuple[int, int] = (0, 0)
    """Bytes of inputs, results and constants before and after dimensions were halved; 0 when nothing was shrunk."""
    tapped: bool = False
    """Whether tapped.tflite is there, which more outputs make right."""
    lives_apart: bool = False
    """Whether repro.py runs the model in a process of its own, since it may not survive."""
    twin: TwinReport = field(default=TwinReport(NO_TWIN))


def title(record: RunRecord, culprit: Culprit, repro: Repro) -> str:
    """Returns a title line ready to paste."""
    op = next((o for o in culprit.ops if o.index == culprit.op), None)
    shown = repro.state in (ALONE, IN_CONTEXT, PREDICTED)
    if shown and len(repro.ops) == 1:
        what = repro.ops[0]
    elif shown and repro.ops:
        names = [line.split(" ")[0] for line in repro.ops]
        what = " + ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    else:
        named = f"{PurePath(record.model).name}: {culprit.block}"
        what = op.type if op else named if _block(record, culprit) else f"{PurePath(record.model).name}:"
    if culprit.cause is Cause.CONVERSION:
        return f"litert-torch: {culprit.operator or what} differs from PyTorch after conversion"
    where = "fp16 emulation" if is_emulated(record) else "WebGPU delegate"
    words = {
        Cause.WRONG_KERNEL: "gives wrong values in fp16 and in fp32, the CPU is right",
        Cause.OVERFLOW: "leaves fp16's range in default precision, fp32 on the same GPU is right",
        Cause.PRECISION_LOSS: "loses its digits in default precision, fp32 on the same GPU is right",
    }
    if is_emulated(record):
        words[Cause.OVERFLOW] = "leaves fp16's range, fp32 is right"
        words[Cause.PRECISION_LOSS] = "loses its digits in fp16, fp32 is right"
    if culprit.kind == "underflow":
        words[Cause.OVERFLOW] = "flushes small numbers to zero in default precision, fp32 on the same GPU is right"
        if is_emulated(record):
            words[Cause.OVERFLOW] = "flushes small numbers to zero in fp16, fp32 is right"
    if not is_emulated(record) and not any(RunName.GPU_FP32 in block.errors for block in record.blocks):
        words = {cause: said.replace(", fp32 on the same GPU is right", "") for cause, said in words.items()}
        words[Cause.WRONG_KERNEL] = "gives wrong values, the CPU is right"
    return f"{where}: {what} {words.get(culprit.cause, cause_words(culprit.cause))}"


def render(record: RunRecord, culprit: Culprit, repro: Repro) -> str:
    """Returns ISSUE.md."""
    sections = [
        _head(record, culprit, repro),
        _happens(record, culprit),
        _reproduction(culprit, repro),
        _twin(repro.twin),
        _where(record, culprit),
        _excluded(record, culprit, repro),
        _environment(record),
        _versions(repro),
        _claims(record, culprit, repro),
    ]
    parts = ["\n".join(section) for section in sections]
    whole = "\n\n".join(part for part in parts if part) + "\n"
    if len(whole) > MAX_LENGTH:
        whole = whole[:MAX_LENGTH].rsplit("\n", 1)[0] + "\n\nThe rest is in report.md.\n"
    return whole


def _head(record: RunRecord, culprit: Culprit, repro: Repro) -> Iterator[str]:
    # Not escaped: it is there to be copied into a field that knows no Markdown.
    yield f"# {' '.join(formats.clean(title(record, culprit, repro)).split())}"
    yield ""
    if is_emulated(record):
        yield f"> **{record.target}**: no GPU was tested."
        yield ""
    place = f" ({_code(culprit.source)})" if culprit.source else ""
    yield f"{_text(record.verdict.summary.split('. ')[0].rstrip('.'))}.{place}"


def _happens(record: RunRecord, culprit: Culprit) -> Iterator[str]:
    block = _block(record, culprit)
    yield "## What happens, and what should"
    yield ""
    yield from (f"- {_text(sentence)}" for sentence in (*culprit.evidence, *culprit.proof))
    conversion = culprit.cause is Cause.CONVERSION
    should = "PyTorch's values" if conversion else "the values the same file gives on the CPU"
    allowed = "" if block is None or block.expected != block.expected else formats.number(block.expected)
    cost = f"; rounding every tensor to fp16 costs {allowed} (relative L2)" if allowed and not conversion else ""
    yield f"- Expected: {should}{cost}."
    if culprit.code:
        yield from ("", "```python", *formats.clean(culprit.code).splitlines(), "```")


def _reproduction(culprit: Culprit, repro: Repro) -> Iterator[str]:
    yield "## Minimal reproduction"
    yield ""
    words = {
        ALONE: "It reproduces alone: `repro/model.tflite` holds these ops and nothing else.",
        IN_CONTEXT: "It reproduces only in context: `repro/model.tflite` is the smallest stretch that fails.",
        PREDICTED: "Predicted by emulated fp16 on the CPU, not seen on a GPU "
        f"({_text(repro.why)}): `repro/model.tflite` is the smallest stretch that fails so. `repro.py` ends with 1 "
        "only where a GPU shows it.",
        NOT_ALONE: "It does not reproduce outside the whole model: the ops, cut out with their neighbours, are right.",
        NOT_TRIED: f"Not tried here ({_text(repro.why)}): `repro/model.tflite` holds the block's ops as they were cut.",
    }
    yield words[repro.state] if repro.ops or repro.state == NOT_ALONE else f"There is none: {_text(repro.why)}."
    if not repro.ops:
        return
    yield ""
    yield from (f"- {_code(line)}" for line in repro.ops[:20])
    if len(repro.ops) > 20:
        yield f"- and {len(repro.ops) - 20} more"
    yield ""
    yield f"It needs numpy and ai-edge-litert, and {formats.plural(repro.model_bytes, 'byte')} of model:"
    yield ""
    yield from ("```sh", "pip install numpy ai-edge-litert", "python repro/repro.py   # exit code 1: it reproduces")
    yield "```"
    if repro.output:
        shown = formats.clean(repro.output.rstrip())[:MAX_OUTPUT].replace("```", "'''")
        yield from ("", "```text", *shown.splitlines(), "```")
    if repro.lives_apart:
        yield ""
        yield "`repro.py` runs it in a process of its own, which may die or hang, and survives that."
    if repro.tapped:
        yield ""
        yield "`repro/tapped.tflite` is the same graph with its inner tensors as outputs, too: with these it is right."
    elif culprit.cause is Cause.TAP_EFFECT:
        yield ""
        yield "No taps were found that make this cut right; that they do so in the whole model is in report.md."
    for what, instead in (("weights", repro.weights), ("inputs", repro.inputs)):
        if instead:
            yield ""
            yield f"The {what} in it are not the model's: {_text(instead)}."


def _twin(twin: TwinReport) -> Iterator[str]:
    yield "## The same in PyTorch"
    yield ""
    if twin.state == NO_TWIN:
        yield f"There is no PyTorch twin: {_text(twin.why)}."
        return
    builds = f"`repro/repro_torch.py` builds {_text(twin.what)} as a module of its own and converts it"
    words = {
        ALONE: f"{builds}; it reproduces.",
        NOT_ALONE: f"{builds}. Converted so it does not show the fault: that takes the model around it.",
        NOT_TRIED: f"{builds}; it was not tried here ({_text(twin.why)}).",
    }
    yield words[twin.state]
    yield ""
    yield from ("```sh", "pip install torch litert-torch", "python repro/repro_torch.py   # exit code 1: it reproduces")
    yield "```"
    if twin.state == ALONE and twin.output:
        shown = formats.clean(twin.output.rstrip())[:MAX_OUTPUT].replace("```", "'''")
        yield from ("", "```text", *shown.splitlines(), "```")
    for what, instead in (("weights", twin.weights), ("inputs", twin.inputs)):
        if instead:
            yield ""
            yield f"The {what} in it are not the model's: {_text(instead)}."


def _where(record: RunRecord, culprit: Culprit) -> Iterator[str]:
    names = [block.name for block in record.blocks]
    at = names.index(culprit.block) if culprit.block in names else 0
    shown = record.blocks[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1]
    if not shown:
        return
    yield "## Where"
    yield ""
    yield from markdown.block_table(record, shown)
    if len(shown) < len(record.blocks):
        yield ""
        yield f"{len(shown)} of {len(record.blocks)} blocks; all of them are in report.md."


def _excluded(record: RunRecord, culprit: Culprit, repro: Repro) -> Iterator[str]:
    found = list(markdown.exclusions(record)) if record.culprits[:1] == (culprit,) else []
    where = record.placement
    if not is_emulated(record) and where.gpu_ops > 0 and not where.cpu_ops:
        found.append(f"**Fallback to the CPU**, by the placement: {_text(where.line)}")
    if repro.state in (ALONE, IN_CONTEXT):
        found.append("**The rest of the model, and the taps**, by the reproduction: it has neither.")
        found.append("**Chance**, by running the reproduction twice, in two processes.")
    if not found:
        return
    yield "## Ruled out, and by which run"
    yield ""
    yield from (f"- {line}" for line in found)


def _environment(record: RunRecord) -> Iterator[str]:
    yield "## Environment"
    yield ""
    yield _row(["", ""])
    yield "| --- | --- |"
    yield _row(["model", _code(PurePath(record.model).name)])
    files = (("the Python file that defines it", record.definition), ("the .tflite file", record.artefact))
    for what, file in files:
        if file is not None:
            yield _row([f"SHA-256 of {what}", f"{_code(file.sha256)}, {formats.plural(file.size, 'byte')}"])
    yield _row(["adapter", _text(record.placement.adapter or "none")])
    if record.placement.line:
        yield _row(["placement", _text(record.placement.line)])
    for refusal in record.placement.refusals:
        yield _row(["refused", f"{_code(refusal.op)} ×{refusal.count}: {_text(refusal.reason)}"])
    for name, value in record.environment.items():
        yield _row([_text(name), _text(value)])
    for info in record.inputs:
        yield _row(["input", _text(formats.input_line(info))])


def _versions(repro: Repro) -> Iterator[str]:
    if not repro.versions:
        return
    yield "## Versions tried"
    yield ""
    yield _row(["ai-edge-litert", "adapter", "result"])
    yield "| --- | --- | --- |"
    for version, adapter, result in repro.versions:
        yield _row([_text(version), _text(adapter), _text(result)])
    yield ""
    yield "`bisect-litert replay BUNDLE --python VERSION` tries another."


def _claims(record: RunRecord, culprit: Culprit, repro: Repro) -> Iterator[str]:
    yield "## What this claims, and what not"
    yield ""
    if culprit.kind == NO_CONTROL:
        yield "- The GPU's result is wrong at these ops' own inputs, by more than fp16 explains; the CPU's is right."
        yield "- The runtime has no option for fp32 on the GPU, so that was not tried."
    elif culprit.cause is Cause.WRONG_KERNEL:
        yield "- The GPU's result is wrong at these ops' own inputs whatever the precision; the CPU's is right."
    elif culprit.cause in (Cause.CRASH, Cause.HANG):
        yield f"- The runtime {'does not end' if culprit.cause is Cause.HANG else 'dies'} on these ops."
    elif culprit.cause in (Cause.ALIASED_OUTPUT, Cause.UNWRITTEN_OUTPUT, Cause.TAP_EFFECT):
        yield "- What an output holds depends on which other tensors are outputs, not on the values alone."
    elif culprit.cause is Cause.CONVERSION:
        yield "- The .tflite file does not compute what PyTorch does; no GPU is involved."
    else:
        if is_emulated(record):
            yield "- These values do not survive fp16; fp32 is right."
        else:
            yield "- Default precision on this GPU is fp16, and these values do not survive it; fp32 is right."
        if _emulation_shows(record, culprit):
            yield "- Storing every tensor as fp16 on the CPU does it too: any honest fp16 device would."
    yield "- One set of inputs on one adapter was tested. Nothing is said of other GPUs and backends."
    if repro.state == PREDICTED:
        yield "- That a GPU does it is not claimed: none was seen to."
    if repro.ops and repro.state in (NOT_ALONE, NOT_TRIED):
        yield "- That the ops above fail by themselves is not claimed."
    others = len(record.culprits) - 1
    if others:
        yield f"- The model has {formats.plural(others, 'more culprit')}; this is about {_code(culprit.block)} only."
    yield ""
    yield "Found with bisect-litert; run.json and report.md hold every number."


def _block(record: RunRecord, culprit: Culprit) -> BlockResult | None:
    return next((block for block in record.blocks if block.name == culprit.block), None)


def _emulation_shows(record: RunRecord, culprit: Culprit) -> bool:
    block = _block(record, culprit)
    errors = block.errors.get(RunName.FP16) if block else None
    local = errors.local if errors else None
    return local is not None and not (local.finite_agreement and local.relative_l2 <= record.settings.output_limit)


def op_lines(ops: Sequence[tuple[str, Sequence[tuple[tuple[int, ...], bool]]]]) -> tuple[str, ...]:
    """Returns one line per op of its type and operands: "ADD [16, 16], constant [4, 16, 16]"."""
    return tuple(
        f"{kind} " + ", ".join(("constant " if constant else "") + formats.shape(dims) for dims, constant in operands)
        for kind, operands in ops
    )
