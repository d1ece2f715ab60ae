"""JUnit XML for CI: a suite per target, a test case per model."""

from __future__ import annotations

from math import isnan
from xml.etree import ElementTree as Xml

from bisect_litert.matrix.reports import words
from bisect_litert.matrix.table import FAILED, Cell, Code, Matrix
from bisect_litert.reports.junit import clean

_NOT_RUN = (Code.SKIP, Code.T_SKIP, Code.OPEN)


def render(matrix: Matrix) -> str:
    """Returns the matrix as JUnit XML. With a baseline only what got worse fails; what was known is passed."""
    root = Xml.Element("testsuites", {"name": clean(matrix.title)})
    for target in matrix.targets:
        cells = [cell for cell in matrix.cells if cell.target == target]
        suite = Xml.SubElement(root, "testsuite", {"name": clean(target)})
        properties = Xml.SubElement(suite, "properties")
        for name, value in _properties(cells).items():
            Xml.SubElement(properties, "property", {"name": clean(name), "value": clean(value)})
        kinds = [_case(suite, matrix, cell) for cell in cells]
        for kind in ("failures", "errors", "skipped"):
            suite.set(kind, str(kinds.count(kind)))
        suite.set("tests", str(len(cells)))
        suite.set("time", f"{sum(c.seconds for c in cells if not isnan(c.seconds)):.3f}")
    Xml.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _properties(cells: list[Cell]) -> dict[str, str]:
    devices = list(dict.fromkeys(cell.device for cell in cells if cell.device))
    runtimes = list(dict.fromkeys(cell.runtime for cell in cells if cell.runtime))
    known = next((cell.environment for cell in cells if cell.environment), {})
    return {"device": "; ".join(devices), "runtime": "; ".join(runtimes), **known}


def _case(suite: Xml.Element, matrix: Matrix, cell: Cell) -> str:
    """Adds a test case. Returns what it counts as; empty when passed."""
    seconds = "0.000" if isnan(cell.seconds) else f"{cell.seconds:.3f}"
    name = {"name": clean(cell.model), "classname": clean(cell.target), "time": seconds}
    case = Xml.SubElement(suite, "testcase", name)
    change = matrix.change(cell)
    tag, kind = _kind(matrix, cell)
    if tag:
        message = f"{change.kind}: {change.detail}" if change and change.worse else words.line(cell)
        attributes = {"message": clean(message)}
        if tag != "skipped":
            attributes["type"] = str(cell.cause if cell.code is Code.DIFF else cell.code)
        found = Xml.SubElement(case, tag, attributes)
        told = [words.line(cell), cell.summary, cell.where, cell.advice, cell.folder]
        found.text = clean("\n".join(line for line in told if line))
    elif cell.code is not Code.OK:
        Xml.SubElement(case, "system-out").text = clean(f"known: {words.line(cell)}. {cell.summary}")
    return kind


def _kind(matrix: Matrix, cell: Cell) -> tuple[str, str]:
    """The element and the count it goes to."""
    change = matrix.change(cell)
    if cell.code in _NOT_RUN:
        return "skipped", "skipped"
    if matrix.changes is not None:
        return ("failure", "failures") if change and change.worse else ("", "")
    if cell.code in FAILED:
        return "error", "errors"
    return ("failure", "failures") if cell.code in (Code.DIFF, Code.REJECT) else ("", "")
