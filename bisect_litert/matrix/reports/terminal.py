"""The table on a terminal, and a line of progress per cell."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bisect_litert.matrix.reports import junit, markdown, spreadsheet, words
from bisect_litert.matrix.table import FAILED, JUDGED, LEGEND, Cell, Code, Matrix
from bisect_litert.reports import formats

_STYLES = {
    Code.OK: "green",
    Code.DIFF: "bold red",
    Code.PARTIAL: "yellow",
    Code.REJECT: "bold yellow",
    **dict.fromkeys(FAILED, "bold magenta"),
}


def render(matrix: Matrix, console: Console, folder: Path) -> None:
    """Draws the table.

    Args:
        matrix: What to show.
        console: Where.
        folder: The matrix's folder, to name its files.
    """
    line = matrix.device_line or "nothing has run yet"
    _say(console, Text(f"{matrix.title}: {line}", "bold"))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for target in matrix.targets:
        table.add_column(_clean(console, target), overflow="fold")
    for model in matrix.models:
        cells = [_cell(console, matrix, matrix.at(model, target)) for target in matrix.targets]
        table.add_row(_clean(console, model), *cells)
    console.print(table)
    console.print()
    used = {cell.code for cell in matrix.cells}
    for code, says in LEGEND.items():
        if code in used:
            _say(console, Text.assemble((f"{code:<8}", _STYLES.get(code, "dim")), says))
    if used & set(JUDGED):
        _say(console, Text(words.NUMBERS, "dim"))
    found = words.findings(matrix)
    if found:
        console.print()
    for finding in found:
        head = f"{finding.cell.model} on {', '.join(finding.targets)}: "
        _say(console, Text.assemble((head, "bold"), finding.text))
    if matrix.changes is not None:
        console.print()
        worse = [c for c in matrix.changes if c.worse]
        _say(console, Text(f"Against the baseline: {formats.plural(len(worse), 'cell')} worse", "bold"))
        for change in sorted(matrix.changes, key=lambda c: not c.worse):
            said = f"{change.model} on {change.target}: {change.kind}: {change.detail}"
            _say(console, Text(said, "bold red" if change.worse else ""))
    console.print()
    _say(console, Text(f"{words.counts(matrix)}. Took {formats.seconds(matrix.seconds)}."))
    _say(console, Text(f"{folder}/: matrix.html · matrix.md · matrix.csv · matrix.json · junit.xml · cells/"))


def _cell(console: Console, matrix: Matrix, cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    text = Text(words.code(cell), _STYLES.get(cell.code, "dim"))
    rest = [words.place(cell), words.level(cell)]
    change = matrix.change(cell)
    rest += [str(change.kind).upper() if change.worse else str(change.kind)] if change else []
    text.append(_clean(console, "".join(f" {part}" for part in rest if part)), "default")
    return text


def _say(console: Console, text: Text) -> None:
    console.print(Text(_clean(console, text.plain), spans=text.spans, style=text.style), soft_wrap=True)


def _clean(console: Console, text: str) -> str:
    return formats.clean(text, console.options.ascii_only)


def progress(cell: Cell, done: int, todo: int) -> str:
    """Returns a line for stderr."""
    return formats.clean(
        f"[{done}/{todo}] {cell.model} on {cell.target}: {words.line(cell)} ({formats.seconds(cell.seconds)})"
    )


def other(matrix: Matrix, form: str) -> str:
    """Returns the matrix in one of the forms that are files as well."""
    forms = {"md": markdown.render, "csv": spreadsheet.render, "junit": junit.render, "json": Matrix.to_json}
    return forms[form](matrix)
