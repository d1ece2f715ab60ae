"""A cell in a few words, the same in every report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isnan

from bisect_litert.matrix.table import LEGEND, Cell, Code, Matrix
from bisect_litert.reports import formats

NUMBERS = "The number is the relative L2 error of the worst model output against PyTorch, r its correlation."


def code(cell: Cell) -> str:
    """Returns "OK", "DIFF overflow", "PARTIAL 57/262"."""
    if cell.code is Code.PARTIAL:
        return f"{cell.code} {cell.gpu_ops}/{cell.ops}"
    return f"{cell.code} {cell.cause}" if cell.code is Code.DIFF else str(cell.code)


def place(cell: Cell) -> str:
    """Returns the first wrong block, and how many more there are."""
    return f"{cell.block} +{cell.more}" if cell.more else cell.block


def level(cell: Cell) -> str:
    """Returns how far off the worst output is: "3.1e-4", "0.20, r 0.9803", "914 not finite"; empty when unknown."""
    if cell.nonfinite:
        return f"{formats.count(cell.nonfinite)} not finite"
    if isnan(cell.relative_l2):
        return ""
    said = formats.number(cell.relative_l2)
    if cell.code is Code.DIFF and not isnan(cell.correlation):
        said += f", r {formats.correlation(cell.correlation)}"
    return said


def line(cell: Cell) -> str:
    """Returns all of it: "DIFF overflow in blocks.3, 0.20, r 0.9803"."""
    head = code(cell) + (f" in {place(cell)}" if cell.block else "")
    return ", ".join(part for part in (head, level(cell)) if part)


def counts(matrix: Matrix) -> str:
    """Returns "12 OK, 3 DIFF, 1 C-FAIL"."""
    found = Counter(cell.code for cell in matrix.cells)
    return ", ".join(f"{found[c]} {c}" for c in LEGEND if found[c])


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands behind one or more cells of a model."""

    cell: Cell
    targets: tuple[str, ...]
    text: str


def findings(matrix: Matrix) -> list[Finding]:
    """Returns what there is to say, each thing once: a model that does not load says so on every target."""
    found: dict[tuple[str, Code, str], Finding] = {}
    for cell in matrix.cells:
        text = explanation(cell)
        if text:
            key = (cell.model, cell.code, text)
            known = found.get(key, Finding(cell, (), text))
            found[key] = Finding(known.cell, (*known.targets, cell.target), text)
    return list(found.values())


def explanation(cell: Cell) -> str:
    """Returns what a cell's code leaves unsaid: the verdict, or what the GPU refused; empty where all is well."""
    refused = f"The GPU refuses {cell.refused}." if cell.refused else ""
    if cell.code is Code.PARTIAL:
        return refused
    if cell.code is Code.REJECT:
        return " ".join(part for part in (cell.summary, refused) if part)
    return "" if cell.code in (Code.OK, Code.OPEN) else cell.summary


def size(size: int) -> str:
    """Returns a file's size."""
    if not size:
        return ""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"


def versions(matrix: Matrix) -> str:
    """Returns the versions that cells have in common, in reading order."""
    told = [cell.environment for cell in matrix.cells if cell.environment]
    if not told:
        return ""
    same = {k: v for k, v in told[0].items() if all(e.get(k) == v for e in told) and not k.startswith("device")}
    return " · ".join(f"{name} {version}" for name, version in same.items())
