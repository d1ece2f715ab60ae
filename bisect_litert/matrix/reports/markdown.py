"""The table as Markdown: the device in the first line, one column per target, then what stands behind each cell."""

from __future__ import annotations

from collections.abc import Iterator

from bisect_litert.matrix.reports import words
from bisect_litert.matrix.table import JUDGED, LEGEND, Cell, Code, Matrix
from bisect_litert.reports import formats
from bisect_litert.reports.markdown_text import code as _code
from bisect_litert.reports.markdown_text import row as _row
from bisect_litert.reports.markdown_text import text as _text


def render(matrix: Matrix) -> str:
    """Returns the whole table as Markdown."""
    sections = (_head, _table, _changes, _found, _numbers)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(matrix)))) + "\n"


def _head(matrix: Matrix) -> Iterator[str]:
    yield f"# {_text(matrix.title)}: {_text(matrix.device_line or 'nothing has run yet')}"
    yield ""
    told = [words.counts(matrix), words.versions(matrix)]
    yield "  \n".join(_text(line) for line in told if line)


def _table(matrix: Matrix) -> Iterator[str]:
    yield _row(["model", *map(_text, matrix.targets)])
    yield _row(["---"] * (len(matrix.targets) + 1))
    for model in matrix.models:
        yield _row([_text(model), *(_cell(matrix, matrix.at(model, target)) for target in matrix.targets)])
    yield ""
    used = {cell.code for cell in matrix.cells}
    yield "  \n".join(f"**{code}**: {says}" for code, says in LEGEND.items() if code in used)
    if used & set(JUDGED):
        yield ""
        yield words.NUMBERS


def _cell(matrix: Matrix, cell: Cell | None) -> str:
    if cell is None:
        return ""
    said = _text(words.line(cell))
    head = words.code(cell)
    said = f"**{head}**{said[len(_text(head)) :]}" if cell.code is not Code.OK else said
    change = matrix.change(cell)
    return f"{said} ({change.kind})" if change else said


def _changes(matrix: Matrix) -> Iterator[str]:
    if matrix.changes is None:
        return
    yield "## Against the baseline"
    yield ""
    if not matrix.changes:
        yield "Nothing changed."
        return
    yield "| model | target | | |"
    yield "| --- | --- | --- | --- |"
    for change in sorted(matrix.changes, key=lambda c: not c.worse):
        kind = f"**{change.kind}**" if change.worse else str(change.kind)
        yield _row([_text(change.model), _text(change.target), kind, _text(change.detail)])


def _found(matrix: Matrix) -> Iterator[str]:
    found = words.findings(matrix)
    if not found:
        return
    yield "## What was found"
    for finding in found:
        cell = finding.cell
        yield ""
        yield f"**{_text(cell.model)}** on {_text(', '.join(finding.targets))}: {_text(_head_of(finding))}  "
        yield f"{_text(finding.text)}" + (f" ({_code(cell.where)})" if cell.where else "")
        if cell.advice and cell.code is Code.DIFF:
            yield f"*Next:* {_text(cell.advice)}"


def _head_of(finding: words.Finding) -> str:
    """The cell in words; where it stands for others too, without the number that is its own."""
    alone = len(finding.targets) == 1
    return words.line(finding.cell) if alone else words.code(finding.cell)


def _numbers(matrix: Matrix) -> Iterator[str]:
    ran = [cell for cell in matrix.cells if cell.finished and cell.code is not Code.SKIP]
    if not ran:
        return
    yield "## Each cell"
    yield ""
    yield "| model | target | device | on the GPU | rel L2 | corr | time | file | sha256 | folder |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for cell in ran:
        yield _row(
            [
                _text(cell.model),
                _text(cell.target),
                _text(cell.device),
                f"{cell.gpu_ops}/{cell.ops}" if cell.ops else "",
                "" if cell.code not in JUDGED else formats.number(cell.relative_l2),
                "" if cell.code not in JUDGED else formats.correlation(cell.correlation),
                formats.seconds(cell.seconds),
                words.size(cell.size),
                cell.sha256[:12],
                _code(cell.folder) if cell.folder else "",
            ]
        )
