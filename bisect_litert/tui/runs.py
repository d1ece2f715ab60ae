"""Run folders on disk, as the picker lists them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bisect_litert.record import RUN_FILE, SCHEMA_VERSION
from bisect_litert.records.run_folder import MARKER

RUN_GLOB = "bisect-run-*"
_WHEN = "%Y-%m-%d %H:%M"
MOST = 200
"""Newest runs listed."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run folder; `trouble` says why it cannot be opened, "" where it can."""

    folder: Path
    when: str
    model: str
    verdict: str
    target: str
    seconds: float
    trouble: str = ""


def find_runs(base: Path) -> list[RunLine]:
    """Returns the run folders in `base`, the newest first."""
    try:
        ours = [path for path in base.iterdir() if path.match(RUN_GLOB) or (path / MARKER).is_file()]  # --out names any
        folders = [path for path in ours if (path / RUN_FILE).is_file()]
        folders.sort(key=lambda path: (path / RUN_FILE).stat().st_mtime, reverse=True)
    except OSError:
        return []
    return sorted(map(_line, folders[:MOST]), key=lambda line: line.when, reverse=True)


def _line(folder: Path) -> RunLine:
    when = datetime.fromtimestamp((folder / RUN_FILE).stat().st_mtime).strftime(_WHEN)
    try:
        # Plain JSON: turning hundreds of blocks into objects, for each of many runs, would take seconds.
        data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA_VERSION:
            return RunLine(folder, when, "", "", "", 0.0, f"schema {data['schema']}, this reads {SCHEMA_VERSION}")
        culprits = [culprit["block"] for culprit in data["culprits"]]
        verdict = data["verdict"]["cause"] + (f" in {culprits[0]}" if culprits else "")
        verdict += f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
        symbol = "✗ " if data["verdict"]["diverged"] else ("✓ " if data["verdict"]["cause"] == "none" else "! ")
        seconds = float(data["seconds"])
        when = datetime.fromisoformat(data["started"].replace("Z", "+00:00")).astimezone().strftime(_WHEN)
        return RunLine(folder, when, str(data["model"]), symbol + verdict, str(data["target"]), seconds)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return RunLine(folder, when, "", "", "", 0.0, "run.json is damaged")
