"""The table in every form; each is made from a `Matrix` and written whole, so that nobody ever reads half of one."""

from __future__ import annotations

from bisect_litert.matrix.reports import junit, markdown, page, spreadsheet
from bisect_litert.matrix.store import Store
from bisect_litert.matrix.table import MATRIX_FILE, Matrix

MARKDOWN_FILE = "matrix.md"
CSV_FILE = "matrix.csv"
JUNIT_FILE = "junit.xml"
PAGE_FILE = "matrix.html"


def write_all(matrix: Matrix, store: Store) -> None:
    """Writes every form of the table into the matrix's folder."""
    store.write(MATRIX_FILE, matrix.to_json())
    store.write(MARKDOWN_FILE, markdown.render(matrix))
    store.write(CSV_FILE, spreadsheet.render(matrix))
    store.write(JUNIT_FILE, junit.render(matrix))
    store.write(PAGE_FILE, page.render(matrix, store.folder))
