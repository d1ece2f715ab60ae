"""Run folders with tensors and ops, as the terminal UI reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import sample_record as sample

from bisect_litert.block_record import OpResult, RunErrors, TapInfo
from bisect_litert.measuring.metrics import compare
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.vocabulary import Mark, RunName, TapOrigin

SHAPE = (2, 16, 64)
CODE = "\n".join(
    [
        "  39         x = x + self.attention(self.norm1(x))",
        "> 40         return x + self.mlp(self.norm2(x * self.gain))",
        "  41",
    ]
)


def op(index: int, kind: str, peak: float, *, guilty: bool = False, line: int = 40) -> OpResult:
    return OpResult(
        index=index,
        type=kind,
        tensor=f"model.M/enc.b3/torch.nn.modules.normalization.LayerNorm_norm2;{index}",
        shape=SHAPE,
        inputs=(SHAPE, (2, 16, 1)),
        module="enc.b3.norm2",
        source=f"model.py:{line}",
        code="return x + self.mlp(self.norm2(x * self.gain))",
        local=sample.comparison(3.7e-4, nonfinite=914 if guilty else 0),
        reference_peak=peak,
        accumulated=0.0,
        contribution=2.1e-4,
        mark=Mark.CULPRIT if guilty else Mark.OK,
    )


def taken_apart(culprit: Culprit) -> Culprit:
    """A culprit with everything that can be known of it."""
    return replace(
        culprit,
        op=192,
        module="enc.b3.norm2",
        source="model.py:40",
        code=CODE,
        ops=(
            op(189, "MUL", 7102.0),
            op(190, "MEAN", 363.0),
            op(191, "RESHAPE", 363.0),
            op(192, "SQUARED_DIFFERENCE", 5.06e7, guilty=True),
            op(193, "MEAN", 1.1e6),
            op(194, "RSQRT", 0.01),
        ),
        proof=("With this block kept off the GPU every output is right (within 0.00099).",),
        confidence="high",
        confidence_reason="7 of 7 readings agree.",
        upstream="google-ai-edge/LiteRT#8593, seen in 2.3.0",
    )


def tensors() -> tuple[np.ndarray, np.ndarray]:
    """A reference, and a target that lost rows 3 and 5 to infinity, channels from 48 to zero, and digits elsewhere."""
    random = np.random.default_rng(0)
    reference = random.standard_normal(SHAPE).astype(np.float32)
    target = (reference * (1 + 1e-3 * random.standard_normal(SHAPE))).astype(np.float32)
    target[:, :, 48:] = 0
    target[:, [3, 5], :] = np.inf
    return reference, target


def write(folder: Path, record: RunRecord | None = None, keep: str = "enc.b3") -> RunRecord:
    """Writes an overflow's run folder, with the tensors of one block, and returns its record."""
    record = record or sample.overflow()
    reference, target = tensors()
    (folder / "tensors").mkdir(parents=True, exist_ok=True)
    files = tuple(f"tensors/000-{keep}.{side}.npy" for side in ("reference", "target"))
    for name, values in zip(files, (reference, target), strict=True):
        np.save(folder / name, values)
    measured = compare(reference=reference, target=target)
    blocks = []
    for block in record.blocks:
        if block.name == keep:
            tap = TapInfo("", TapOrigin.GRAPH, "t", SHAPE, "float32", "", *files)
            errors = {**block.errors, RunName.GPU: RunErrors(measured, measured)}
            block = replace(block, taps=(tap,), errors=errors)
        blocks.append(block)
    culprits = tuple(taken_apart(c) if c.block == keep else c for c in record.culprits)
    record = replace(record, blocks=tuple(blocks), culprits=culprits)
    record.save(folder)
    return record


def deep(blocks: int = 300) -> RunRecord:
    """A deep model: one culprit two thirds of the way down, one note, one block that was not tapped."""
    at = 2 * blocks // 3
    rows = []
    for i in range(blocks):
        total = sample.comparison(3e-4 * (1 + i / 50)) if i < at else sample.comparison(0.3, 0.9)
        local = sample.comparison(3e-4 if i != at else 0.3)
        mark = Mark.OK if i < at else (Mark.CULPRIT if i == at else Mark.AFTER)
        rows.append(sample.block(f"model.layers.{i}.mlp", i, cumulative=total, local=local, mark=mark))
    rows[7] = replace(rows[7], mark=Mark.NOTE)
    rows[9] = sample.block("model.layers.9.mlp", 9, mark=Mark.UNTAPPED)
    verdict = replace(sample.overflow().verdict, summary=f"model.layers.{at}.mlp overflows.")
    return sample.record(rows, verdict, [sample.culprit(f"model.layers.{at}.mlp")])
