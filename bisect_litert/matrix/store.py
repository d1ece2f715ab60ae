"""The matrix's folder on disk: one folder per cell, whole or not there, and what of it still holds.

OUT/matrix.json .md .csv .html, junit.xml
OUT/cells/MODEL/TARGET/cell.json, cell.log, run/
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_litert import json_form
from bisect_litert.errors import UsageError
from bisect_litert.matrix import content
from bisect_litert.matrix.table import Cell, MatrixFileError, structure

CELL_FILE = "cell.json"
LOG_FILE = "cell.log"
RUN_FOLDER = "run"
MARKER = ".bisect-litert-matrix"


class MatrixFolderError(UsageError):
    """The matrix's folder cannot be used."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A cell as its folder holds it."""

    key: str
    sources: dict[str, str]
    """Files the run read, relative to the plan's folder, with their hashes."""
    cell: Cell
    invocation: str = ""
    """Which run of the matrix made it, on a cluster."""


class Store:
    """The folder of one matrix.

    Args:
        folder: Where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self) -> None:
        """Makes the folder, or takes over one that an earlier matrix made.

        Raises:
            MatrixFolderError: It holds something else, or cannot be written.
        """
        folder = self.folder
        with self._writing():
            if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
                raise MatrixFolderError(
                    f"{folder} is not empty and was not made by bisect-litert matrix.", hint="Give another with --out."
                )
            (folder / "cells").mkdir(parents=True, exist_ok=True)
            (folder / MARKER).write_text("Made by bisect-litert matrix.\n", encoding="utf-8")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "Free some space or give another folder with --out; what is finished is kept."
            raise MatrixFolderError(f"{self.folder} cannot be written: {error.strerror}.", hint=hint) from None

    def place(self, model: str, target: str) -> Path:
        """Returns where a cell lies."""
        return self.folder / "cells" / model / target

    def new(self, model: str, target: str) -> Path:
        """Makes a folder to work in; `keep` moves it to its place."""
        parent = self.place(model, target).parent
        with self._writing():
            parent.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=f".{target}-", dir=parent))

    def keep(self, work: Path, kept: Kept) -> Cell:
        """Writes a finished cell into the folder it was worked out in and moves that to its place, all at once."""
        place = self.place(*kept.cell.key)
        cell = replace(kept.cell, folder=place.relative_to(self.folder).as_posix())
        text = json_form.text(replace(kept, cell=cell))
        with self._writing():
            (work / CELL_FILE).write_text(text, encoding="utf-8")
            if place.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
                os.replace(place, old / "old")
                os.replace(work, place)
                shutil.rmtree(old, ignore_errors=True)
            else:
                os.replace(work, place)
        return cell

    def kept(self, model: str, target: str) -> Kept | None:
        """Returns what a cell's folder holds; None when it holds nothing that can be read."""
        file = self.place(model, target) / CELL_FILE
        try:
            return structure(json.loads(file.read_text(encoding="utf-8")), Kept, file)
        except (OSError, ValueError, MatrixFileError):
            return None

    def finished(self, model: str, target: str, key: str, plan_folder: Path) -> Cell | None:
        """Returns a cell that was run with just this; None when it has to be run."""
        kept = self.kept(model, target)
        if kept is None or kept.key != key or not content.still_so(kept.sources, plan_folder):
            return None
        return kept.cell

    def tidy(self) -> None:
        """Removes what processes that were killed left half done."""
        for left in (self.folder / "cells").glob("*/.*"):
            shutil.rmtree(left, ignore_errors=True)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the matrix so that nobody ever sees half of it."""
        with self._writing():
            handle, partial = tempfile.mkstemp(prefix=f".{name}-", dir=self.folder)
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(partial, 0o644)
                os.replace(partial, self.folder / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
                raise
