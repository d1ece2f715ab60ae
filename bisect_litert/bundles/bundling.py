"""A bug report in one folder and one zip: what was found in words, and the smallest file that still fails.

Reads a run folder; needs no PyTorch. The reproduction is shrunk by running it on the GPU of this machine, and then run
once more as the reader will run it: as a script of its own, in a fresh process. Files are written one by one, so that
a large model is never held twice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bisect_litert.bundles import repro_script
from bisect_litert.bundles.papers import pack, write_papers
from bisect_litert.bundles.privacy import Scrubber
from bisect_litert.bundles.reenacting import run_script
from bisect_litert.bundles.reproducing import Desk
from bisect_litert.bundles.reproduction import FOLDER
from bisect_litert.devices import machines
from bisect_litert.errors import RunFolderError, UsageError
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import issue
from bisect_litert.request import RUNNER_PYTHON, BisectRequest

NOT_WANTED = "it was not asked for (--no-twin)"


class HealthyError(UsageError):
    """There is nothing to report."""


@dataclass(frozen=True)
class Bundle:
    """What was written."""

    folder: Path
    archive: Path
    state: str
    """One of reports.issue's: "alone", "in context", "not alone", "not tried"."""
    ops: tuple[str, ...]
    model_bytes: int
    title: str
    sizes: tuple[int, int] = (0, 0)
    """Bytes of its inputs, results and constants before and after their dimensions were halved."""
    twin: str = ""
    """One of reports.issue's, of the PyTorch twin: "alone", "not alone", "not tried", "none"."""

    def summary(self) -> str:
        """Returns what to tell the user."""
        words = {
            issue.ALONE: "reproduces alone",
            issue.IN_CONTEXT: "reproduces only in context",
            issue.NOT_ALONE: "does not reproduce outside the whole model",
            issue.NOT_TRIED: "was not tried here",
            issue.PREDICTED: "fails in emulated fp16, not seen on a GPU",
        }
        size = f": {', '.join(op.split(' ')[0] for op in self.ops[:6])}, {self.model_bytes} bytes" if self.ops else ""
        said = f"The culprit {words[self.state]}{size}." if self.ops else "It holds no reproduction; ISSUE.md says why."
        twin = {
            issue.ALONE: "Its PyTorch twin reproduces, too.",
            issue.NOT_ALONE: "Its PyTorch twin does not show it outside the model.",
            issue.NOT_TRIED: "Its PyTorch twin was not tried here.",
        }.get(self.twin, "")
        lines = [self.title, " ".join(filter(None, (said, twin))), f"{self.folder}/", str(self.archive)]
        lines.append(f"Next: read {self.folder}/ISSUE.md, paste it as an issue, and attach the zip.")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    out: Path | None = None
    culprit: int = 1
    """Which one of the run's culprits, from 1."""
    weights: bool = True
    inputs: bool = True
    twin: bool = True
    """Whether to make the PyTorch twin, which takes a conversion or a few."""
    runner: str = ""
    """Where to run it instead: "ssh HOST", or a command."""
    runner_python: str = RUNNER_PYTHON
    python: str = ""
    """Interpreter with the ai-edge-litert that the run's GPU jobs ran under; empty for this one."""
    pythons: tuple[str, ...] = ()
    """Interpreters with other versions of ai-edge-litert to try the reproduction with."""


def make_bundle(run: Path, wishes: Wishes, say: Callable[[str], None]) -> Bundle:
    """Makes the bundle of a run.

    Args:
        run: The run folder.
        wishes: Where to, and what to leave out.
        say: Told of progress, and of the weights and inputs the bundle will hold before any of them is written.

    Raises:
        HealthyError: The run found nothing.
        RunFolderError: The folder cannot be read, or the one to write to is taken.
        BisectError: Weights or inputs were to be left out, and the fault does not show without them.
    """
    record = RunRecord.load(run)
    run = run if run.is_dir() else run.parent  # named by its run.json
    if not record.verdict.diverged and not record.culprits:
        raise HealthyError(
            f"{run} found no divergence ({record.verdict.cause}); there is nothing to report.",
            hint="Bundle a run that ended with exit code 1.",
        )
    if record.culprits and not 1 <= wishes.culprit <= len(record.culprits):
        raise UsageError(f"{run} has no culprit {wishes.culprit}.", hint=f"It has {len(record.culprits)}.")
    culprit = record.culprits[wishes.culprit - 1] if record.culprits else _whole(record)
    folder = wishes.out or run.with_name(f"{run.resolve().name}-bundle")
    archive = folder.with_name(folder.name + ".zip")
    for path in (folder, archive):
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise RunFolderError(f"{path} exists already.", hint="Give another folder with --out, or remove it.")
    place = BisectRequest("", runner=wishes.runner, runner_python=wishes.runner_python, python=wishes.python)
    machines.check(place)
    scrub = Scrubber(also=_device_names(record))
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as scratch:
        # Put together beside its place, so that a bundle is there whole or not at all.
        made = Path(scratch) / "bundle"
        made.mkdir()
        source, out = run / FOLDER / str(wishes.culprit), made / FOLDER
        desk = Desk(source, out, Path(scratch), record, wishes.weights, wishes.inputs, say, scrub, place)
        repro = desk.reproduction(culprit)
        if repro.ops:
            others = (_tried(out, Path(scratch), python, scrub) for python in wishes.pythons)
            repro = replace(repro, versions=(*repro.versions, *others))
        repro = replace(repro, twin=desk.twin() if wishes.twin else issue.TwinReport(issue.NO_TWIN, why=NOT_WANTED))
        write_papers(run, record, culprit, repro, made, scrub)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(made, folder, dirs_exist_ok=True)
            pack(folder, archive)
        except OSError as error:
            raise RunFolderError(
                f"{folder} cannot be written: {error.strerror or error}.", hint="Give another folder with --out."
            ) from None
    title = scrub.text(issue.title(record, culprit, repro))
    return Bundle(folder, archive, repro.state, repro.ops, repro.model_bytes, title, repro.sizes, repro.twin.state)


def _device_names(record: RunRecord) -> tuple[str, ...]:
    """What the machine that ran the GPU jobs is called; nothing when it has a description and no name."""
    device = record.environment.get("device", "")
    return () if " " in device else (device, device.partition(".")[0])


def _whole(record: RunRecord) -> Culprit:
    """Stands for the model where no block is to blame."""
    return Culprit("(model)", record.verdict.cause, "", (record.verdict.summary,), record.verdict.next_step)


def _tried(folder: Path, scratch: Path, python: str, scrub: Scrubber) -> tuple[str, str, str]:
    """Runtime, adapter and result of the reproduction under another interpreter."""
    _, answer = run_script(folder, scratch, python)
    result = str(answer.get("result", repro_script.UNTESTED))
    why = f": {answer['why']}" if result == repro_script.UNTESTED and answer.get("why") else ""
    return str(answer.get("version", "unknown")), scrub.text(str(answer.get("adapter", ""))) or "none", result + why
