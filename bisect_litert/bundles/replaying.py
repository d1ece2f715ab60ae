"""Runs a bundle's reproduction here and now, on another runtime or another GPU, and says what became of the fault."""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from bisect_litert.bundles.reenacting import run_script
from bisect_litert.bundles.repro_script import DIFFERENT, FIXED, SAME
from bisect_litert.bundles.reproduction import FILE, FOLDER, MODEL, Reproduction
from bisect_litert.errors import ExitCode, RunFolderError

MAX_UNPACKED = 1 << 30
"""Bytes of a bundle's zip that are unpacked."""
_WORDS = {SAME: "same", FIXED: "fixed", DIFFERENT: "different"}


_MEANINGS = {"same": "the fault shows here, too", "fixed": "the fault does not show here"}


@dataclass(frozen=True)
class Replay:
    """What became of the fault."""

    word: str
    """"same", "fixed", "different" or "cannot test"."""
    why: str
    text: str
    """What the reproduction printed."""
    before: str
    """What it was recorded with: runtime version and adapter."""
    now: str
    exit_code: ExitCode
    """As `git bisect run` takes it: 1 for same and different, 0 for fixed, 125 where it cannot be tested."""

    def summary(self) -> str:
        """Returns what to tell the user."""
        why = self.why or _MEANINGS.get(self.word, "")
        return f"{self.word}{f': {why}' if why else ''}\nrecorded with {self.before}\nreplayed with {self.now}\n"


def replay(bundle: Path, python: str) -> Replay:
    """Runs the reproduction of a bundle with our own script; nothing in the bundle is executed.

    Args:
        bundle: A bundle's folder, its zip, or its repro folder.
        python: The interpreter to run it with, which needs numpy and ai-edge-litert only.

    Raises:
        RunFolderError: It holds no reproduction, or only a part of one.
    """
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as scratch:
        folder = _unpacked(bundle, Path(scratch) / "bundle") if bundle.is_file() else bundle
        places = [folder / FOLDER, folder]
        place = next((p for p in places if (p / FILE).is_file() and (p / MODEL).is_file()), None)
        if place is None:
            raise RunFolderError(f"{bundle} holds no reproduction.", hint="Give a folder or zip that `bundle` wrote.")
        try:
            kept = Reproduction.load(place)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{bundle} cannot be read: {error}.", hint="Make the bundle again.") from None
        _check_files(place, kept, bundle)
        text, answer = run_script(place, Path(scratch), python)
    result = str(answer.get("result", ""))
    word = _WORDS.get(result, "cannot test")
    codes = {"same": ExitCode.DIVERGED, "different": ExitCode.DIVERGED, "fixed": ExitCode.OK}
    return Replay(
        word=word,
        why=str(answer.get("why", "")),
        text=text,
        before=_line(kept.seen.get("ai-edge-litert", ""), kept.seen.get("adapter", "")),
        now=_line(str(answer.get("version", "")), str(answer.get("adapter", ""))),
        exit_code=codes.get(word, ExitCode.CANNOT_TEST),
    )


def _check_files(place: Path, kept: Reproduction, bundle: Path) -> None:
    """Raises: RunFolderError: A file that repro.json names is missing or damaged."""
    hint = "Get the whole bundle once more, or make it again with `bisect-litert bundle`."
    for file in (t.file for t in (*kept.inputs, *kept.outputs)):
        try:
            np.load(place / file, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise RunFolderError(f"{bundle} lacks {file}, which its {FILE} names.", hint=hint) from None
        except (OSError, ValueError, EOFError) as error:
            said = str(error).rstrip(".")
            raise RunFolderError(f"{file} of {bundle} is damaged: {said}.", hint=hint) from None


def _line(version: str, adapter: str) -> str:
    return f"ai-edge-litert {version or 'unknown'}, {adapter or 'no adapter'}"


def _unpacked(archive: Path, folder: Path) -> Path:
    """Unpacks the reproduction's files, by their last name only, so that none lands elsewhere."""
    folder.mkdir()
    left = MAX_UNPACKED
    try:
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                path = PurePosixPath(info.filename)
                if path.parent.name != FOLDER or path.suffix not in (".npy", ".json", ".tflite"):
                    continue
                left -= info.file_size
                if left < 0:
                    raise RunFolderError(f"{archive} unpacks to more than 1 GiB.", hint="Give a bundle's own zip.")
                (folder / path.name).write_bytes(packed.read(info))
    except (OSError, zipfile.BadZipFile) as error:
        raise RunFolderError(f"{archive} cannot be read: {error}.", hint="Give a bundle's own zip.") from None
    return folder
