"""The table as CSV: one line per cell, every field of it."""

from __future__ import annotations

import csv
import io

from bisect_litert.matrix.table import Cell, Matrix

COLUMNS = (
    "model", "target", "device", "runtime", "code", "cause", "block", "more", "where", "relative_l2", "correlation",
    "nonfinite", "gpu_ops", "ops", "seconds", "size", "sha256", "started", "folder", "exit_code", "refused", "summary",
)  # fmt: skip


def render(matrix: Matrix) -> str:
    """Returns the cells as CSV, with what changed in the last column when there is a baseline."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    extra = ["change"] if matrix.changes is not None else []
    writer.writerow([*COLUMNS, *extra])
    for cell in matrix.cells:
        change = matrix.change(cell)
        writer.writerow([*(_field(cell, c) for c in COLUMNS), *([str(change.kind) if change else ""] if extra else [])])
    return file.getvalue()


def _field(cell: Cell, name: str) -> str:
    value = getattr(cell, name)
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return " ".join(str(value).split())
