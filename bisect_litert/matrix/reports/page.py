"""The table as one HTML file that needs nothing else: styles, plots and all stand in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from html import escape
from pathlib import Path

from bisect_litert.matrix.reports import pictures, words
from bisect_litert.matrix.table import FAILED, JUDGED, LEGEND, Cell, Code, Matrix
from bisect_litert.reports import REPORT_FILE, formats

_SIGNS = {
    Code.OK: "✓",
    Code.DIFF: "✗",
    Code.PARTIAL: "◐",
    Code.REJECT: "⊘",
    Code.L_FAIL: "!",
    Code.C_FAIL: "!",
    Code.T_FAIL: "!",
    Code.T_SKIP: "–",
    Code.SKIP: "–",
    Code.OPEN: "…",
}
_OPENED = (Code.DIFF, Code.REJECT, *FAILED)
_SCRIPT = """
const open = () => { const at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const box = at && at.closest("details"); if (box) { box.open = true; at.scrollIntoView(); } };
addEventListener("hashchange", open); open();
"""


def render(matrix: Matrix, folder: Path) -> str:
    """Returns the page.

    Args:
        matrix: What to show.
        folder: The matrix's folder, where the plots are.
    """
    body = "\n".join([*_head(matrix), *_legend(matrix), *_changes(matrix), *_table(matrix), *_details(matrix, folder)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(matrix.title)}: {_text(words.counts(matrix))}</title>\n"
        f"<style>\n{_styles()}</style>\n</head>\n<body>\n{body}\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


@lru_cache(maxsize=1)
def _styles() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _head(matrix: Matrix) -> Iterator[str]:
    yield "<header>"
    yield f'<p class="device">{_text(matrix.device_line or "Nothing has run yet")}</p>'
    yield f"<h1>{_text(matrix.title)}</h1>"
    yield f'<p class="counts">{_text(words.counts(matrix))}</p>'
    versions = words.versions(matrix)
    if versions:
        yield f'<p class="versions">{_text(versions)}</p>'
    yield "</header>"


def _legend(matrix: Matrix) -> Iterator[str]:
    used = {cell.code for cell in matrix.cells}
    yield '<dl class="legend">'
    for code, says in LEGEND.items():
        if code in used:
            yield f"<div><dt>{_badge(code)}</dt><dd>{_text(says)}</dd></div>"
    yield "</dl>"
    if used & set(JUDGED):
        yield (
            '<p class="key">The number is the relative L2 error of the worst model output against PyTorch, '
            "<i>r</i> its correlation. A cell leads to what was found.</p>"
        )


def _badge(code: Code, text: str = "") -> str:
    return (
        f'<span class="badge {_class(code)}"><b aria-hidden="true">{_SIGNS[code]}</b> {_text(text or str(code))}</span>'
    )


def _class(code: Code) -> str:
    return code.value.lower().replace("-", "")


def _changes(matrix: Matrix) -> Iterator[str]:
    if matrix.changes is None:
        return
    yield "<section><h2>Against the baseline</h2>"
    if not matrix.changes:
        yield "<p>Nothing changed.</p></section>"
        return
    yield '<table class="changes"><tbody>'
    for change in sorted(matrix.changes, key=lambda c: not c.worse):
        kind = f"<strong>{_text(str(change.kind))}</strong>" if change.worse else _text(str(change.kind))
        link = f'<a href="#{_anchor(change.model, change.target)}">{_text(change.model)} on {_text(change.target)}</a>'
        yield f"<tr><th>{kind}</th><td>{link}</td><td>{_text(change.detail)}</td></tr>"
    yield "</tbody></table></section>"


def _table(matrix: Matrix) -> Iterator[str]:
    yield '<div class="scroll"><table class="matrix"><thead><tr><th scope="col">model</th>'
    yield "".join(f'<th scope="col">{_text(target)}</th>' for target in matrix.targets)
    yield "</tr></thead><tbody>"
    for model in matrix.models:
        cells = (_cell(matrix, matrix.at(model, target)) for target in matrix.targets)
        yield f'<tr><th scope="row">{_text(model)}</th>{"".join(cells)}</tr>'
    yield "</tbody></table></div>"


def _cell(matrix: Matrix, cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    parts = [_badge(cell.code, words.code(cell))]
    if cell.block:
        parts.append(f'<span class="block">{_text(words.place(cell))}</span>')
    level = words.level(cell)
    if level:
        parts.append(f'<span class="level">{_text(level)}</span>')
    change = matrix.change(cell)
    if change is not None:
        parts.append(f'<span class="change{" worse" if change.worse else ""}">{_text(str(change.kind))}</span>')
    inner = "".join(parts)
    if cell.finished:
        inner = f'<a href="#{_anchor(*cell.key)}" title="{_text(cell.summary)}">{inner}</a>'
    return f'<td class="{_class(cell.code)}">{inner}</td>'


def _details(matrix: Matrix, folder: Path) -> Iterator[str]:
    for model in matrix.models:
        cells = [cell for cell in matrix.cells if cell.model == model and cell.finished]
        if not cells:
            continue
        yield f"<section><h2>{_text(model)}</h2>"
        for cell in cells:
            yield from _detail(matrix, cell, folder)
        yield "</section>"


def _detail(matrix: Matrix, cell: Cell, folder: Path) -> Iterator[str]:
    change = matrix.change(cell)
    opened = " open" if cell.code in _OPENED or (change is not None and change.worse) else ""
    yield f"<details{opened}><summary>{_badge(cell.code, words.code(cell))} <b>{_text(cell.target)}</b>"
    said = [words.place(cell), words.level(cell), formats.seconds(cell.seconds)]
    yield f'<span class="level">{_text(" · ".join(part for part in said if part and part != "-"))}</span></summary>'
    yield f'<div class="detail" id="{_anchor(*cell.key)}"><div class="facts">'
    if cell.summary:
        yield f"<p>{_text(cell.summary)}</p>"
    if cell.refused:
        yield f"<p>The GPU refuses {_text(cell.refused)}.</p>"
    if cell.advice and cell.code is not Code.OK:
        yield f'<p class="next"><b>Next.</b> {_text(cell.advice)}</p>'
    if change is not None:
        yield f"<p><b>{_text(str(change.kind))}</b>: {_text(change.detail)}</p>"
    yield "<dl>"
    for name, value in _facts(cell):
        yield f"<div><dt>{name}</dt><dd>{value}</dd></div>"
    yield "</dl>"
    if cell.notes:
        yield f'<ul class="notes">{"".join(f"<li>{_text(note)}</li>" for note in cell.notes)}</ul>'
    yield "</div>"
    plot = pictures.data_uri(folder / cell.folder / pictures.SMALL_FILE) if cell.folder else ""
    if plot:
        alt = f"Error by depth of {cell.model} on {cell.target}"
        yield f'<img src="{plot}" alt="{_text(alt)}" loading="lazy">'
    yield "</div></details>"


def _facts(cell: Cell) -> Iterator[tuple[str, str]]:
    if cell.where:
        yield "where", _text(cell.where)
    if cell.device:
        yield "device", _text(cell.device)
    if cell.runtime:
        yield "runtime", _text(f"ai-edge-litert {cell.runtime}")
    if cell.ops:
        yield "on the GPU", f"{cell.gpu_ops} of {cell.ops} ops"
    if cell.code in JUDGED:
        yield "relative L2", _text(formats.number(cell.relative_l2))
        yield "correlation", _text(formats.correlation(cell.correlation))
    if cell.size:
        yield "file", f"{words.size(cell.size)}, sha256 <code>{_text(cell.sha256[:16])}</code>"
    if cell.started:
        yield "started", _text(cell.started)
    if cell.folder:
        links = [("log", f"{cell.folder}/cell.log")]
        links += [("report", f"{cell.run}/{REPORT_FILE}"), ("run.json", f"{cell.run}/run.json")] if cell.run else []
        yield "files", " · ".join(f'<a href="{_text(path)}">{name}</a>' for name, path in links)


def _anchor(model: str, target: str) -> str:
    return _text(f"{model}.{target}")


def _text(text: str) -> str:
    return escape(formats.clean(text), quote=True)
