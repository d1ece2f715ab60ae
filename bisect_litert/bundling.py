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
from typing import Any

import numpy as np

from bisect_litert import repro_script, reproduction
from bisect_litert.errors import BisectError, RunFolderError, UsageError
from bisect_litert.graph import Graph
from bisect_litert.papers import pack, write_papers
from bisect_litert.privacy import Scrubber
from bisect_litert.randomising import weights_of, without_inputs, without_weights
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reenacting import SCRIPT, TIME_LIMIT, run_script
from bisect_litert.reports import issue
from bisect_litert.reproduction import MODEL, Reproduction, TensorFile
from bisect_litert.runners import Runner
from bisect_litert.shrinking import Shrinker, Shrunk, Trial


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

    def summary(self) -> str:
        """Returns what to tell the user."""
        words = {
            issue.ALONE: "reproduces alone",
            issue.IN_CONTEXT: "reproduces only in context",
            issue.NOT_ALONE: "does not reproduce outside the whole model",
            issue.NOT_TRIED: "was not tried here",
        }
        size = f": {', '.join(op.split(' ')[0] for op in self.ops[:6])}, {self.model_bytes} bytes" if self.ops else ""
        said = f"The culprit {words[self.state]}{size}." if self.ops else "It holds no reproduction; ISSUE.md says why."
        lines = [self.title, said, f"{self.folder}/", str(self.archive)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Wishes:
    """What the user asked for."""

    out: Path | None = None
    culprit: int = 1
    """Which one of the run's culprits, from 1."""
    weights: bool = True
    inputs: bool = True
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
    scrub = Scrubber(also=_device_names(record))
    with tempfile.TemporaryDirectory(prefix="bisect-litert-") as scratch:
        # Put together beside its place, so that a bundle is there whole or not at all.
        made = Path(scratch) / "bundle"
        made.mkdir()
        repro = _reproduction(run, record, culprit, wishes, made / "repro", Path(scratch), say, scrub)
        if repro.ops:
            others = (_tried(made / "repro", Path(scratch), python, scrub) for python in wishes.pythons)
            repro = replace(repro, versions=(*repro.versions, *others))
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
    return Bundle(folder, archive, repro.state, repro.ops, repro.model_bytes, title)


def _device_names(record: RunRecord) -> tuple[str, ...]:
    """What the machine that ran the GPU jobs is called; nothing when it has a description and no name."""
    device = record.environment.get("device", "")
    return () if " " in device else (device, device.partition(".")[0])


def _whole(record: RunRecord) -> Culprit:
    """Stands for the model where no block is to blame."""
    return Culprit("(model)", record.verdict.cause, "", (record.verdict.summary,), record.verdict.next_step)


# -- the reproduction --------------------------------------------------------------------------------------------------


def _reproduction(
    run: Path,
    record: RunRecord,
    culprit: Culprit,
    wishes: Wishes,
    out: Path,
    scratch: Path,
    say: Callable[[str], None],
    scrub: Scrubber,
) -> issue.Repro:
    source = run / reproduction.FOLDER / str(wishes.culprit)
    try:
        kept = Reproduction.load(source)
    except FileNotFoundError:
        known = any(block.name == culprit.block for block in record.blocks)
        why = "the run kept no reproduction of it" if known else "no single block is at fault"
        return issue.Repro(issue.NOT_TRIED, why)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{source} cannot be read: {error}.", hint="Run bisect-litert again.") from None
    if kept.reference == "torch":
        return _as_kept(kept, source, wishes, out, scratch, say, scrub, "nothing to shrink without PyTorch")
    with Runner(scratch / "runner", TIME_LIMIT) as runner:
        shrinker = Shrinker(kept, source, runner, scratch, record.settings, say)
        shrunk = shrinker.shrink()
        if shrunk.trial is None:
            why = shrunk.untested or "it is right outside the model"
            repro = _as_kept(kept, source, wishes, out, scratch, say, scrub, why)
            return repro if shrunk.untested else replace(repro, state=issue.NOT_ALONE)
        trial, weights, inputs = _without(shrunk.trial, shrinker, wishes)
    return _written(kept, shrunk, trial, weights, inputs, out, scratch, say, scrub)


def _without(trial: Trial, shrinker: Shrinker, wishes: Wishes) -> tuple[Trial, str, str]:
    weights = inputs = ""
    for wanted, what, option, make in (
        (wishes.weights, "weights", "--no-weights", without_weights),
        (wishes.inputs, "inputs", "--no-inputs", without_inputs),
    ):
        if wanted:
            continue
        found = make(trial, shrinker)
        if found is None:
            raise BisectError(
                f"The fault does not show with random {what}, so a bundle without them would prove nothing.",
                hint=f"Leave {option} out; the {what} it would hold are listed before they are written.",
            )
        trial, how = found
        weights, inputs = (how, inputs) if what == "weights" else (weights, how)
    return trial, weights, inputs


def _written(
    kept: Reproduction,
    shrunk: Shrunk,
    trial: Trial,
    weights: str,
    inputs: str,
    out: Path,
    scratch: Path,
    say: Callable[[str], None],
    scrub: Scrubber,
) -> issue.Repro:
    graph = _renamed(trial.graph, scrub)
    _list_contents(graph, trial.inputs, weights, inputs, say)
    out.mkdir()
    graph.write(out / MODEL)
    files = [_write_tensor(out, name, value, name, raw=True) for name, value in trial.inputs.items()]
    right = [_write_tensor(out, name, value, f"expected_{name}") for name, value in trial.expected.items()]
    about = replace(
        kept,
        block=scrub.text(kept.block),
        ops=trial.ops,
        inputs=tuple(files),
        outputs=tuple(right),
        tolerance=trial.tolerance,
        context=(),
        context_inputs=(),
        accelerator=trial.accelerator,
    )
    state = issue.ALONE if shrunk.alone else issue.IN_CONTEXT
    return _finished(about, state, "", graph, out, scratch, scrub, weights, inputs)


def _as_kept(
    kept: Reproduction,
    source: Path,
    wishes: Wishes,
    out: Path,
    scratch: Path,
    say: Callable[[str], None],
    scrub: Scrubber,
    why: str,
) -> issue.Repro:
    """The block as the run cut it, for what cannot be shrunk here."""
    if not (wishes.weights and wishes.inputs):
        raise BisectError(
            f"Weights and inputs can be left out only of what was seen to fail here, and it was not tried: {why}.",
            hint="Bundle it on the machine with the GPU, or leave --no-weights and --no-inputs out.",
        )
    graph = _renamed(Graph.read(source / MODEL), scrub)
    inputs = {t.name: np.load(source / t.file, allow_pickle=False, mmap_mode="r") for t in kept.inputs}
    _list_contents(graph, inputs, "", "", say)
    out.mkdir()
    graph.write(out / MODEL)
    files = [_write_tensor(out, name, value, name, raw=True) for name, value in inputs.items()]
    for t in kept.outputs:
        shutil.copyfile(source / t.file, out / t.file)
    about = replace(kept, block=scrub.text(kept.block), inputs=tuple(files), context=(), context_inputs=())
    return _finished(about, issue.NOT_TRIED, why, graph, out, scratch, scrub, "", "")


def _finished(
    about: Reproduction,
    state: str,
    why: str,
    graph: Graph,
    out: Path,
    scratch: Path,
    scrub: Scrubber,
    weights: str,
    inputs: str,
) -> issue.Repro:
    """Adds the script and what it prints when it is run as the reader will run it."""
    shutil.copyfile(Path(repro_script.__file__), out / SCRIPT)
    about.save(out)
    text, answer = run_script(out, scratch)
    found = str(answer.get("result", repro_script.UNTESTED))
    seen = {"state": state, "result": found, "ai-edge-litert": str(answer.get("version", ""))}
    seen["adapter"] = scrub.text(str(answer.get("adapter", "")))
    replace(about, seen=seen).save(out)
    text = scrub.text(text)
    (out / "output.txt").write_text(text, encoding="utf-8")
    if state != issue.NOT_TRIED and found != repro_script.SAME:
        state, why = issue.NOT_TRIED, "it failed while it was shrunk, and not in a process of its own"
    elif about.reference == "torch" and found == repro_script.SAME:
        state = issue.ALONE
    return issue.Repro(
        state=state,
        why=scrub.text(why),
        ops=_op_lines(graph),
        output=text,
        model_bytes=(out / MODEL).stat().st_size,
        weights=weights,
        inputs=inputs,
        versions=((seen["ai-edge-litert"], seen["adapter"] or "none", found),),
    )


def _tried(folder: Path, scratch: Path, python: str, scrub: Scrubber) -> tuple[str, str, str]:
    """Runtime, adapter and result of the reproduction under another interpreter."""
    _, answer = run_script(folder, scratch, python)
    result = str(answer.get("result", repro_script.UNTESTED))
    why = f": {answer['why']}" if result == repro_script.UNTESTED and answer.get("why") else ""
    return str(answer.get("version", "unknown")), scrub.text(str(answer.get("adapter", ""))) or "none", result + why


def _write_tensor(folder: Path, name: str, value: np.ndarray, stem: str, raw: bool = False) -> TensorFile:
    np.save(folder / f"{stem}.npy", value, allow_pickle=False)
    if raw:  # what LiteRT's own run_model and benchmark tools read
        (folder / f"{stem}.raw").write_bytes(np.ascontiguousarray(value).data)
    return TensorFile(name, f"{stem}.npy", value.dtype.name, value.shape)


def _renamed(graph: Graph, scrub: Scrubber) -> Graph:
    """The graph with tensor names that name nobody."""
    editor = graph.edit()
    for index, tensor in enumerate(graph.tensors):
        name = scrub.text(tensor.name)
        if name != tensor.name:
            editor.rename(index, name)
    return editor.graph()


def _list_contents(graph: Graph, inputs: Any, weights: str, random: str, say: Callable[[str], None]) -> None:
    for t in weights_of(graph):
        tensor = graph.tensors[t]
        kind = f"random ({weights})" if weights else "of the model"
        say(f"weights in the bundle: {tensor.name} {list(tensor.shape)}, {4 * tensor.size} bytes, {kind}")
    for name, value in inputs.items():
        kind = f"random ({random})" if random else "from the run"
        say(f"input in the bundle: {name} {list(value.shape)}, {value.nbytes} bytes, {kind}")


def _op_lines(graph: Graph) -> tuple[str, ...]:
    tensors = graph.tensors
    return issue.op_lines([(op.type, [(tensors[t].shape, tensors[t].constant) for t in op.inputs]) for op in graph.ops])
