"""The folder a run leaves behind: its name, and whether one that exists may be used.

Nothing but the files named in `KNOWN_FILES` is ever deleted, and those only with `force`, in a folder that a run made.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from bisect_litert.errors import RunFolderError
from bisect_litert.record import RUN_FILE
from bisect_litert.vocabulary import Cause

MARKER = ".bisect-litert-run"
"""Written first, so that a run that was interrupted before its run.json is still known as one."""

SURVEY_FILE = "runtimes.json"
"""Of a survey over several versions of the runtime, whose run folders lie beside it."""

KNOWN_FILES = (
    MARKER,
    RUN_FILE,
    "run.partial",
    "report.md",
    SURVEY_FILE,
    "runtimes.partial",
    "runtimes.md",
    "divergence.png",
    "tensors/*.npy",
    "logs/*.log",
    *(f"repro/{number}/{files}" for number in (1, 2, 3) for files in ("*.tflite", "*.npy", "*.npz", "*.json")),
)
"""Globs, relative to the run folder, of what a run writes and a later run with `force` replaces."""

_OTHER = "Give another folder with --out."


def label_of(model: str) -> str:
    """Returns the part of a model argument that names its run folder: "models/enc.py:Net" gives "enc"."""
    file, colon, attribute = model.rpartition(":")
    # A Windows drive ("C:\\m.py") has a colon too; only what follows like a name is an attribute.
    stem = Path(file if colon and re.fullmatch(r"\w+", attribute) else model).name
    stem = Path(stem).stem if stem.endswith((".py", ".tflite", ".pt2")) else stem.rpartition(".")[2] or stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "model"


def plan(out: Path | None, model_label: str, now: datetime | None = None) -> Path:
    """Returns the folder a run will use, without touching the disk: `out`, or a new name in the current directory."""
    if out is not None:
        return out
    stamp = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    base = Path(f"bisect-run-{model_label}-{stamp}")
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def check(folder: Path, force: bool) -> None:
    """Refuses a folder that may not be used, before anything slow is done.

    Raises:
        RunFolderError: It is a file, holds something else, or holds an earlier run and `force` is off.
    """
    try:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise RunFolderError(f"{folder} is a file, not a folder.", hint=_OTHER)
        if not any(folder.iterdir()):
            return
    except OSError as error:
        raise _unusable(folder, error) from None
    if not is_run_folder(folder):
        raise RunFolderError(f"{folder} is not empty and was not made by bisect-litert.", hint=_OTHER)
    if not force:
        raise RunFolderError(
            f"{folder} holds an earlier run.", hint="Give another folder with --out, or replace that run with --force."
        )


def create(out: Path | None, model_label: str, force: bool) -> Path:
    """Makes the run folder, empty of an earlier run's files, and returns it.

    Args:
        out: The folder asked for, or none for a new one in the current directory.
        model_label: What to name a new one after (see `label_of`).
        force: Replace an earlier run's files. Files that no run writes stay as they are.

    Raises:
        RunFolderError: The folder may not be used or cannot be written.
    """
    folder = plan(out, model_label)
    check(folder, force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for child in _nested(folder):
            _clear(child)
        for path in known_files(folder):
            path.unlink()
        (folder / MARKER).write_text(
            "Made by bisect-litert; --force replaces the files of the run.\n", encoding="utf-8"
        )
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def is_undecided(folder: Path) -> bool:
    """Whether a run made `folder` and came to no verdict, so that nothing is lost with it."""
    if not (folder / MARKER).is_file():
        return False
    try:
        data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        return bool(data["verdict"]["cause"] == Cause.CANNOT_TEST.value)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_run_folder(folder: Path) -> bool:
    """Whether a bisect-litert run made `folder`."""
    if (folder / MARKER).is_file():
        return True
    try:
        data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and {"schema", "verdict", "blocks"} <= data.keys()


def _nested(folder: Path) -> list[Path]:
    """Returns the run folders of a survey in `folder`, as its table names them: one per version of the runtime."""
    try:
        rows = json.loads((folder / SURVEY_FILE).read_text(encoding="utf-8"))["rows"]
        names = [Path(str(row["folder"])).name for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    children = [folder / name for name in names if name]
    return [child for child in children if not child.is_symlink() and is_run_folder(child)]


def _clear(folder: Path) -> None:
    """Takes away a run: its files, and the folders that are empty then. What no run writes stays, and so the marker."""
    for path in known_files(folder):
        if path.name != MARKER:
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    if [path.name for path in folder.iterdir()] == [MARKER]:
        (folder / MARKER).unlink()
        folder.rmdir()


def known_files(folder: Path) -> list[Path]:
    """Returns the files of a run in `folder`, never one reached through a linked folder."""
    found: list[Path] = []
    for pattern in KNOWN_FILES:
        parent = folder / Path(pattern).parent
        between = [parent, *parent.parents][: len(Path(pattern).parts) - 1]
        if any(path.is_symlink() for path in between):
            continue
        found += [path for path in sorted(parent.glob(Path(pattern).name)) if path.is_file() or path.is_symlink()]
    return found


def _unusable(folder: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{folder} cannot be written: {error.strerror or error}.", hint=_OTHER)
