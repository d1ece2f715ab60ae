"""A CSV with the columns that LiteRT's accuracy_debugger writes, for tools that read those; one row per op looked into.

A cell is empty where the run kept no such number: a record holds errors relative to the reference, not its mean square.
"""

from __future__ import annotations

import csv
import io
from math import isfinite, sqrt

from bisect_litert.block_record import Comparison, OpResult
from bisect_litert.record import RunRecord
from bisect_litert.vocabulary import Mark

HEADER = (
    "Index,Op Code,Tensor Name,Max Diff,MSE,Cos Sim,SNR (dB),PSNR (dB),NaN,Min Ref,Max Ref,Min Accel,Max Accel,Status"
)


def render(record: RunRecord) -> str:
    """Returns the CSV: the ops of every culprit's block, each at the target's own operands."""
    ops: dict[int, OpResult] = {}
    for culprit in record.culprits:
        for op in culprit.ops:
            if op.index not in ops or op.mark is Mark.CULPRIT:
                ops[op.index] = op
    text = io.StringIO()
    text.write(HEADER + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(_row(ops[index]) for index in sorted(ops))
    return text.getvalue()


def _row(op: OpResult) -> list[str]:
    local = op.local
    if local is None:
        return [str(op.index), op.type, op.tensor, *[""] * 10, "SKIPPED"]
    return [
        str(op.index),
        op.type,
        op.tensor,
        _number(local.max_abs_error, 6),
        "",
        _number(cosine(local), 8),
        _number(local.snr_db, 2),
        "",
        "Y" if local.new_nonfinite else "N",
        *[""] * 4,
        "REGRESSION" if op.mark in (Mark.CULPRIT, Mark.NOTE) else "OK",
    ]


def cosine(comparison: Comparison) -> float:
    """Returns the cosine similarity, over the elements finite on both sides.

    With r the reference and t the target, scale = <t, r> / |r|^2 and e = |t - r| / |r|, so |t|^2 / |r|^2 = e^2 + 2
    scale - 1.
    """
    square = comparison.relative_l2**2 + 2 * comparison.scale - 1
    return comparison.scale / sqrt(square) if square > 0 else (0.0 if square == 0 else float("nan"))


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if isfinite(value) else str(value)
