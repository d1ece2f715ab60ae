"""Records like those real runs leave, for tests of everything that only reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

from bisect_litert.block_record import BlockResult, Comparison, RunErrors, TapInfo
from bisect_litert.record import (
    Culprit,
    InputInfo,
    OutputResult,
    Placement,
    Refusal,
    RunInfo,
    RunRecord,
    Settings,
    Verdict,
)
from bisect_litert.vocabulary import Cause, Mark, Residency, RunName, TapOrigin

ELEMENTS = 2 * 64 * 256
EMULATED = "emulated fp16, no GPU"
ENVIRONMENT = {
    "bisect-litert": "0.1.0",
    "torch": "2.13.0+cpu",
    "litert-torch": "0.10.0",
    "ai-edge-litert": "2.3.0",
    "python": "3.11.7",
    "platform": "Linux-x86_64",
}


def comparison(
    relative_l2: float, correlation: float = 0.9999999, peak: float = 4.21, nonfinite: int = 0, zeros: int = 0
) -> Comparison:
    return Comparison(
        elements=ELEMENTS,
        relative_l2=relative_l2,
        correlation=correlation,
        snr_db=inf if relative_l2 == 0 else 66.0,
        scale=1.0,
        max_abs_error=relative_l2 * peak,
        reference_peak=peak,
        target_peak=peak,
        nonfinite=nonfinite,
        new_nonfinite=nonfinite,
        reference_nonfinite=0,
        zeros=zeros,
        new_zeros=zeros,
        saturated=0,
    )


def block(
    name: str,
    order: int,
    *,
    cumulative: Comparison | None = None,
    local: Comparison | None = None,
    cpu: float = 3.1e-7,
    fp32: float | None = None,
    run: RunName = RunName.GPU,
    mark: Mark = Mark.OK,
    cause: Cause = Cause.NONE,
    residency: Residency = Residency.GPU,
    class_name: str = "EncoderBlock",
    expected: float = 2.9e-4,
) -> BlockResult:
    tapped = cumulative is not None
    errors = {RunName.CPU: RunErrors(comparison(cpu), comparison(cpu))} if tapped else {}
    if tapped:
        errors[run] = RunErrors(cumulative, local or cumulative)
    if fp32 is not None:
        errors[RunName.GPU_FP32] = RunErrors(comparison(fp32), comparison(fp32))
    mine = local or cumulative
    return BlockResult(
        name=name,
        module=name.partition("@")[0] if name != "(output)" else "",
        class_name=class_name,
        call=1,
        order=order,
        taps=(
            TapInfo(
                label="",
                origin=TapOrigin.GRAPH if tapped else TapOrigin.NONE,
                tensor=f"model.M/{name};1" if tapped else "",
                shape=(2, 64, 256),
                dtype="float32",
            ),
        ),
        ops=14,
        residency=residency,
        mark=mark,
        cause=cause,
        errors=errors,
        expected=expected if tapped else nan,
        allowance=1.0,
        ratio=mine.relative_l2 / expected if mine else nan,
        amplification=1.1 if tapped else nan,
    )


def record(
    blocks: Sequence[BlockResult], verdict: Verdict, culprits: Sequence[Culprit] = (), target: str = "gpu"
) -> RunRecord:
    emulated = target != "gpu"
    last = next((e.cumulative for e in blocks[-1].errors.values() if e.cumulative), None) if blocks else None
    return RunRecord(
        model="examples/layernorm_overflow.py",
        target=target,
        verdict=verdict,
        culprits=tuple(culprits),
        blocks=tuple(blocks),
        outputs=(OutputResult("output_0", last, last, 6.1e-4),),
        runs=(
            RunInfo("torch", "ok", 0.02),
            RunInfo("convert", "ok", 3.1),
            RunInfo("cpu", "ok", 0.05),
            RunInfo("fp16", "ok", 0.21),
            RunInfo(
                "gpu", "skipped" if emulated else "ok", 0.0 if emulated else 1.4, log="" if emulated else "logs/gpu.log"
            ),
            RunInfo("gpu-fp32", "skipped" if emulated else "ok", 0.0 if emulated else 1.3),
        ),
        inputs=(InputInfo("x", (2, 64, 256), "float32", -3.87, 4.02),),
        placement=Placement("", 0, 0, "No GPU adapter was found.")
        if emulated
        else Placement("llvmpipe (LLVM 19.1.7, 256 bits)", 74, 0, "74 operations ran on the GPU, none on the CPU."),
        environment=ENVIRONMENT,
        settings=Settings(blocks=("enc.*",)),
        seconds=6.4,
        started="2026-03-01T12:00:00Z",
        files={"report": "report.md", "plot": "divergence.png", "logs": "logs/"},
    )


def culprit(name: str = "enc.b3") -> Culprit:
    return Culprit(
        block=name,
        cause=Cause.OVERFLOW,
        kind="",
        evidence=(
            "1246 elements are infinite on the GPU where torch is finite.",
            "A value inside peaks at 1.07e6, past 65504, the largest fp16 number.",
            "gpu-fp32 is right here: relative L2 3.0e-7.",
            "The emulated fp16 run shows the same 71.7% zeros.",
        ),
        advice="Scale the input of the norm down before squaring, or keep this block in fp32.",
    )


def overflow(target: str = "gpu") -> RunRecord:
    run = RunName.GPU if target == "gpu" else RunName.FP16
    fp32 = 3.0e-7 if target == "gpu" else None
    broken = comparison(0.846639, 0.532168, 4.4, 0, round(ELEMENTS * 0.716797))
    blocks = [
        block(f"enc.b{i}", i, cumulative=comparison(3.0e-4 + i * 4e-5), local=comparison(3.1e-4), run=run, fp32=fp32)
        for i in range(3)
    ]
    blocks.append(block("enc.b3", 3, cumulative=broken, run=run, fp32=fp32, mark=Mark.CULPRIT, cause=Cause.OVERFLOW))
    blocks += [
        block(
            f"enc.b{i}",
            i,
            cumulative=comparison(0.85, 0.529),
            local=comparison(3.2e-4),
            run=run,
            fp32=fp32,
            mark=Mark.AFTER,
        )
        for i in (4, 5)
    ]
    verdict = Verdict(
        Cause.OVERFLOW,
        True,
        "enc.b3 squares values up to 1034, and the squares pass 65504, the largest fp16 number. LayerNorm then divides "
        "by an infinite deviation, so 72% of its output is exactly zero.",
        "Scale the input of enc.b3's norm by 1/64 before it squares; the norm's result does not change.",
        ("1 block could be tapped only by a second conversion: enc.b2.",),
    )
    return record(blocks, verdict, [culprit()], target)


def emulated() -> RunRecord:
    return overflow(EMULATED)


def healthy() -> RunRecord:
    blocks = [
        block(f"enc.b{i}", i, cumulative=comparison(3e-4 + i * 4e-5), local=comparison(3.1e-4 + i * 1e-5))
        for i in range(6)
    ]
    verdict = Verdict(
        Cause.NONE, False, "The GPU is within what fp16 costs at all 6 blocks, with taps and without.", "Nothing to do."
    )
    return replace(record(blocks, verdict), model="examples/healthy.py")


def many(total: int = 100, bad: Sequence[int] = (57,)) -> RunRecord:
    """A deep model with overflows in the blocks numbered `bad`; all names are long."""
    blocks = []
    for i in range(total):
        name = f"model.encoder.layers.{i}.self_attention_block"
        after = any(b < i for b in bad)
        if i in bad:
            blocks.append(
                block(
                    name,
                    i,
                    cumulative=comparison(0.84, 0.53, 1.07e6, 1246, 23488),
                    mark=Mark.CULPRIT,
                    cause=Cause.OVERFLOW,
                )
            )
        else:
            level = comparison(0.85, 0.53) if after else comparison(3e-4 * (1 + i / 10))
            blocks.append(
                block(
                    name,
                    i,
                    cumulative=level,
                    local=comparison(2.9e-4 * (1 + i % 7 / 6)),
                    mark=Mark.AFTER if after else Mark.OK,
                )
            )
    names = [blocks[i].name for i in bad]
    verdict = Verdict(Cause.OVERFLOW, True, f"{names[0]} overflows.", "Scale it down.") if bad else healthy().verdict
    return record(blocks, verdict, [culprit(name) for name in names])


def wrong_kernel() -> RunRecord:
    """Attention whose constant mask is read wrongly, partly on the CPU, with names that hurt in Markdown."""
    blocks = [
        block("embed", 0, cumulative=comparison(2.1e-4), residency=Residency.CPU, class_name="Embedding"),
        block(
            "heads.a|b`c",
            1,
            cumulative=comparison(0.046, 0.9990),
            fp32=0.046,
            mark=Mark.CULPRIT,
            cause=Cause.WRONG_KERNEL,
            residency=Residency.MIXED,
        ),
        block("norm", 2, cumulative=comparison(0.047, 0.9989), local=comparison(2e-4), mark=Mark.AFTER),
        block("dead", 3, mark=Mark.UNTAPPED),
    ]
    wrong = Culprit(
        "heads.a|b`c",
        Cause.WRONG_KERNEL,
        "",
        (
            "gpu and gpu-fp32 are both off by 4.6e-2 at this block's own inputs.",
            "The same ops on the CPU are right: 3.1e-7.",
        ),
        "Pass the mask as an input.",
    )
    verdict = Verdict(
        Cause.WRONG_KERNEL,
        True,
        "The GPU computes heads.a|b`c wrongly, in fp16 and in fp32, from inputs that are right. The CPU is right.",
        "Pass the mask as an input instead of a buffer.",
        ("BROADCAST_TO was refused and ran on the CPU.",),
    )
    whole = record(blocks, verdict, [wrong])
    refusals = (Refusal("BROADCAST_TO", "rank 5 | not supported", 2, ("embed",)),)
    line = "57 operations will run on the GPU, and the remaining 2 operations will run on the CPU."
    return replace(
        whole,
        model="attention.py",
        placement=Placement("llvmpipe (LLVM 19.1.7, 256 bits)", 57, 2, line, refusals),
    )


def nan_metrics() -> RunRecord:
    """Everything non-finite from the first block on: nothing is left to compare."""
    dead = comparison(nan, nan, inf, ELEMENTS, 0)
    blocks = [
        block("stem", 0, cumulative=comparison(0.0)),
        block("exp", 1, cumulative=dead, mark=Mark.CULPRIT, cause=Cause.OVERFLOW),
        block("mid", 2, cumulative=replace(dead, elements=0), mark=Mark.UNKNOWN),
        block("(output)", 3, cumulative=comparison(inf, nan), mark=Mark.UNKNOWN),
    ]
    verdict = Verdict(Cause.OVERFLOW, True, "exp overflows to NaN.", "Clamp its input.")
    return record(blocks, verdict, [culprit("exp")])


def cannot_test() -> RunRecord:
    """The worker died before any tensor came back."""
    verdict = Verdict(
        Cause.CRASH, False, "The GPU process died with SIGSEGV before any tensor came back.", "Update the driver."
    )
    return replace(record([block("enc", 0, mark=Mark.UNTAPPED)], verdict), outputs=())
