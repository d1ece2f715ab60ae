"""What a bundle says in words and tables: the issue, the run's own reports and logs, files for CI; and the zip."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from bisect_litert.bundles.privacy import Scrubber
from bisect_litert.record import RUN_FILE, Culprit, RunRecord
from bisect_litert.reports import PLOT_FILE, REPORT_FILE, accuracy_csv, issue, junit, overlay, sarif

ISSUE_FILE = "ISSUE.md"


def write_papers(
    run: Path, record: RunRecord, culprit: Culprit, repro: issue.Repro, out: Path, scrub: Scrubber
) -> None:
    """Writes the issue, the run\'s own reports and logs, and what CI tools read, with names and paths cut."""
    texts = {
        ISSUE_FILE: issue.render(record, culprit, repro),
        "accuracy.csv": accuracy_csv.render(record),
        "junit.xml": junit.render(record),
    }
    for name, text in texts.items():
        (out / name).write_text(scrub.text(text), encoding="utf-8")
    (out / "results.sarif").write_text(_sarif(record, scrub), encoding="utf-8")
    (out / "overlays").mkdir()
    for name, text in (("relative_error", overlay.relative_error(record)), ("verdicts", overlay.verdicts(record))):
        (out / "overlays" / f"{name}.json").write_text(scrub.json(text), encoding="utf-8")
    (out / RUN_FILE).write_text(scrub.json(record.to_json()), encoding="utf-8")
    if (run / REPORT_FILE).is_file():
        text = (run / REPORT_FILE).read_text(encoding="utf-8", errors="replace")
        (out / REPORT_FILE).write_text(scrub.text(text), encoding="utf-8")
    if (run / PLOT_FILE).is_file():
        shutil.copyfile(run / PLOT_FILE, out / PLOT_FILE)
    logs = sorted(path for path in (run / "logs").glob("*.log") if path.is_file() and not path.is_symlink())
    if logs:
        (out / "logs").mkdir()
    for log in logs:
        text = log.read_text(encoding="utf-8", errors="replace")
        (out / "logs" / log.name).write_text(scrub.text(text), encoding="utf-8")


def _sarif(record: RunRecord, scrub: Scrubber) -> str:
    made = json.loads(sarif.render(record))
    schema = made.pop("$schema")  # an address, not a path
    return json.dumps({"$schema": schema, **scrub.value(made)}, indent=1) + "\n"


def pack(folder: Path, archive: Path) -> None:
    """Packs a folder, file by file."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for path in _files(folder):
            # No owner, and no time of its own: the same bundle is the same archive.
            info = zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with path.open("rb") as source, made.open(info, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 1 << 20)


def _files(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
