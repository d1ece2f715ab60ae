"""Runs a folder of planted faults through bisect-litert and counts what it gets right (README.md beside this file).

    python benchmarks/zoo.py DIR [--jobs N] [--only GLOB] [--limit SECONDS] [--split] [--runtime VERSION]
        [--door model|tflite|file] [--json FILE] [--keep DIR]

DIR holds zoo.py, whose `load(name)` returns (module, inputs), and cases.json, which says for every name what is wanted.
Cases run in N processes that take one after another, since importing torch and the converter costs seconds. A process
that dies or hangs costs the one case it was at.

A model comes in through one of three doors: as a module, as a module beside a .tflite file that was converted before,
or as that file alone with its inputs. A file's blocks are named from tensor names, which leave lists out; a name is
taken for the one module whose path ends in it.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import multiprocessing
import os
import queue
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

CANNOT_TEST = "cannot-test"
INTERNAL = 255
"""Exit code of a bug of ours, which no case wants."""


@dataclass(frozen=True)
class Outcome:
    """What the product made of one case: a verdict, or an error with its exit code."""

    cause: str = ""
    diverged: bool = False
    culprits: tuple[tuple[str, str], ...] = ()
    """(block, cause) in the order the verdict lists them; a call suffix "@2" is stripped."""
    sentence: str = ""
    """The verdict's summary, or the error message."""
    target: str = ""
    exit_code: int = 0
    """Of the error that was raised; 0 when there was a verdict."""
    seconds: float = 0.0
    blocks: tuple[str, ...] = ()
    """All blocks of the run, as `culprits` calls them."""


@dataclass(frozen=True)
class Score:
    """What of an outcome is as wanted."""

    block: bool
    cause: bool
    false_alarm: bool


def in_order(wanted: Iterable[object], got: Iterable[object]) -> bool:
    """Whether all of `wanted` occur in `got` in that order, whatever stands between them."""
    rest = iter(got)
    return all(item in rest for item in wanted)


def score(case: Mapping[str, Any], outcome: Outcome) -> Score:
    """Holds an outcome against what the case wants.

    A case that wants an error (`cannot-test`) wants the exit code 2 or 125 and a message of one line. A healthy case
    wants no divergence and no culprit; where it names other causes in `also` (another GPU does overflow there), such a
    verdict is right and no alarm. `blocks` and `causes` stand for several faults in one model: all of them, in order.
    """
    wanted = case["cause"]
    if wanted == CANNOT_TEST:
        refused = outcome.exit_code in (2, 125) and len(outcome.sentence.strip().splitlines()) == 1
        return Score(refused, refused, False)
    if outcome.exit_code:
        return Score(False, False, False)

    accepted = {wanted, *case.get("also", ())}
    cause = outcome.cause in accepted
    if "causes" in case:
        cause = cause and in_order(zip(case["blocks"], case["causes"], strict=True), outcome.culprits)

    names = [block for block, _ in outcome.culprits]
    if wanted == "none":
        excused = outcome.cause != "none" and outcome.cause in accepted
        healthy = not outcome.diverged and not outcome.culprits
        return Score(healthy or excused, cause, outcome.diverged and not excused)
    if "blocks" in case:
        return Score(names[:1] == [case["block"]] and in_order(case["blocks"], names), cause, False)
    return Score(case["block"] is None or names[:1] == [case["block"]], cause, False)


def summarise(
    cases: Mapping[str, Mapping[str, Any]], outcomes: Mapping[str, Outcome], seconds: float
) -> dict[str, Any]:
    """The numbers of a whole run, as `--json` writes them; only cases that have an outcome count."""
    scores = {name: score(cases[name], outcome) for name, outcome in outcomes.items()}
    results = [
        {
            "name": name,
            "wanted_block": cases[name].get("blocks") or cases[name]["block"],
            "wanted_cause": cases[name]["cause"],
            "got_blocks": [block for block, _ in outcomes[name].culprits],
            "got_cause": outcomes[name].cause,
            **asdict(outcomes[name]),
            "block_right": scores[name].block,
            "cause_right": scores[name].cause,
            "false_alarm": scores[name].false_alarm,
        }
        for name in cases
        if name in outcomes
    ]
    wrong = ("name", "wanted_block", "wanted_cause", "got_blocks", "got_cause", "exit_code", "sentence")
    return {
        "cases": len(results),
        "blocks_right": sum(s.block for s in scores.values()),
        "causes_right": sum(s.cause for s in scores.values()),
        "false_alarms": sum(s.false_alarm for s in scores.values()),
        "seconds": round(seconds, 1),
        "targets": sorted({r["target"] for r in results if r["target"]}),
        "misses": [{k: r[k] for k in wrong} for r in results if not (r["block_right"] and r["cause_right"])],
        "results": results,
    }


def load_zoo(folder: Path) -> ModuleType:
    """Imports DIR/zoo.py under a name of its own, since this file is called zoo.py as well."""
    spec = importlib.util.spec_from_file_location("planted_faults", folder / "zoo.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"zoo: {folder} has no zoo.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def ship(module: Any, inputs: Any, out: Path) -> tuple[Path, Path]:
    """Converts a model and returns the file and an .npz of its inputs, by signature name, beside the run folder."""
    import numpy as np

    from bisect_litert.graphs.conversion import input_names
    from bisect_litert.graphs.stored_conversion import Converter
    from bisect_litert.models.model_file import prepare

    loaded = prepare(module, inputs, label="case")
    file, sample = out.with_suffix(".tflite"), out.with_suffix(".npz")
    made = Converter.of_user(True).convert(
        loaded.module, loaded.args, loaded.kwargs, file, out.with_suffix(".convert.log")
    )
    arrays: dict[str, Any] = dict(input_names(made.graph, loaded.args, loaded.kwargs))
    np.savez(sample, **arrays)
    return file, sample


def path_of(block: str, module: Any) -> str:
    """Returns a block's module path without its call: the only one that ends in its name, where it is no path."""
    name = block.split("@")[0]
    paths = [path for path, _ in module.named_modules()]
    ends = [path for path in paths if path.rpartition(".")[2] == name]
    return ends[0] if name not in paths and len(ends) == 1 else name


def run_case(zoo: ModuleType, name: str, out: Path, options: Mapping[str, Any] | None = None) -> Outcome:
    """One case through the product's Python call, with fields of its request as options."""
    import bisect_litert
    from bisect_litert.errors import BisectError

    started = time.monotonic()
    options = dict(options or {})
    door = options.pop("door", "model")
    shutil.rmtree(out, ignore_errors=True)  # of an earlier benchmark with the same --keep
    try:
        module, inputs = zoo.load(name)
        if door == "model":
            record = bisect_litert.bisect(module, inputs, blocks="enc.*", out=out, **options)
        else:
            file, sample = ship(module, inputs, out)
            if door == "tflite":
                record = bisect_litert.bisect(module, inputs, blocks="enc.*", out=out, tflite=file, **options)
            else:
                from bisect_litert.entrances import run_bisection
                from bisect_litert.request import BisectRequest

                request = BisectRequest(model=str(file), inputs=sample, out=out, **options)
                record = run_bisection(request, lambda _: None)
    except BisectError as error:
        outcome = Outcome(exit_code=int(error.exit_code), sentence=error.message)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(exit_code=INTERNAL, sentence=f"{type(error).__name__}: {error}")
    else:

        def called(block: str) -> str:
            return path_of(block, module) if door == "file" else block.split("@")[0]

        outcome = Outcome(
            cause=str(record.verdict.cause),
            diverged=record.verdict.diverged,
            culprits=tuple((called(c.block), str(c.cause)) for c in record.culprits),
            blocks=tuple(called(b.name) for b in record.blocks) if door == "file" else (),
            sentence=record.verdict.summary,
            target=record.target,
        )
    return replace(outcome, seconds=round(time.monotonic() - started, 2))


def serve(connection: Connection, folder: Path, keep: Path, threads: int, options: Mapping[str, Any]) -> None:
    """A process of its own: takes names, gives outcomes, until it gets None. What is printed goes to keep/NAME.log."""
    os.setsid()  # so that a process it starts can be ended together with it
    # llvmpipe and torch would each take every core in every process.
    os.environ.setdefault("LP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    log = os.open(keep / "start.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    zoo = load_zoo(folder)
    for name in iter(connection.recv, None):
        log = os.open(keep / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        outcome = run_case(zoo, name, keep / name, options)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(outcome)


class Slot(threading.Thread):
    """One process at a time, and the thread that feeds it."""

    def __init__(
        self, names: queue.Queue[str], done: queue.Queue[tuple[str, Outcome]], limit: float, *args: Any
    ) -> None:
        super().__init__(daemon=True)
        self.names, self.done, self.limit, self.args = names, done, limit, args
        self.process: Any = None
        self.connection: Connection | None = None

    def run(self) -> None:
        with suppress(queue.Empty):
            while True:
                name = self.names.get_nowait()
                started = time.monotonic()
                outcome = self.ask(name)
                if outcome.exit_code == INTERNAL and not outcome.seconds:
                    outcome = replace(outcome, seconds=round(time.monotonic() - started, 2))
                self.done.put((name, outcome))
        with suppress(OSError):
            if self.process is not None and self.connection is not None:
                self.connection.send(None)  # it may leave by itself, and what it started with it
                self.process.join(10)
        self.stop()

    def ask(self, name: str) -> Outcome:
        """Has the process run one case; starts it when there is none, ends it when it fails."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs, *self.args))
            self.process.start()
            theirs.close()  # otherwise its death would not read as the end of the pipe
        assert self.connection is not None
        try:
            self.connection.send(name)
            if self.connection.poll(self.limit):
                outcome: Outcome = self.connection.recv()
                return outcome
            trouble = f"no answer within {self.limit:g} s"
        except (EOFError, OSError):
            self.process.join(10)
            trouble = f"the process died with exit code {self.process.exitcode}"
        self.stop()
        return Outcome(exit_code=INTERNAL, sentence=trouble)

    def stop(self) -> None:
        """Ends the process and what it started."""
        process, self.process = self.process, None  # both threads may come here
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join(10)


def run_all(names: Sequence[str], cases: Mapping[str, Any], args: argparse.Namespace, keep: Path) -> dict[str, Outcome]:
    """Runs the cases and prints a line for each as it comes in; Ctrl-C keeps what there is."""
    todo: queue.Queue[str] = queue.Queue()
    done: queue.Queue[tuple[str, Outcome]] = queue.Queue()
    for name in names:
        todo.put(name)
    jobs = max(1, min(args.jobs, len(names)))
    threads = max(1, (os.cpu_count() or 1) // jobs)
    options: dict[str, Any] = {"switches": False} if args.split else {}
    options |= {"door": args.door}
    options |= {"python": resolve(args.runtime)} if args.runtime else {}
    options |= {"runner": args.runner, "runner_python": args.runner_python} if args.runner else {}
    slots = [Slot(todo, done, args.limit, args.folder, keep, threads, options) for _ in range(jobs)]
    for slot in slots:
        slot.start()
    outcomes: dict[str, Outcome] = {}
    try:
        while len(outcomes) < len(names):
            name, outcome = done.get()
            outcomes[name] = outcome
            print(f"[{len(outcomes):3}/{len(names)}] {line(name, cases[name], outcome)}", flush=True)
        for slot in slots:
            slot.join(15)
    except KeyboardInterrupt:
        print("zoo: interrupted; counting what is there.", file=sys.stderr)
    finally:
        for slot in slots:
            slot.stop()
    return outcomes


def resolve(asked: str) -> str:
    """The interpreter for a version of ai-edge-litert, or for an interpreter's path."""
    from bisect_litert.errors import BisectError
    from bisect_litert.versions import runtimes

    try:
        return runtimes.resolve(asked, lambda said: print(f"zoo: {said}", file=sys.stderr)).python
    except BisectError as error:
        raise SystemExit(f"zoo: {error.message} {error.hint}") from None


def line(name: str, case: Mapping[str, Any], outcome: Outcome) -> str:
    """One case in one line."""
    result = score(case, outcome)
    mark = "ALARM" if result.false_alarm else "ok" if result.block and result.cause else "MISS"
    got = f"error {outcome.exit_code}" if outcome.exit_code else outcome.cause
    blocks = " ".join(block for block, _ in outcome.culprits)
    return f"{mark:5} {name:28} {got:22} {blocks:20} {outcome.seconds:6.1f} s"


def report(summary: Mapping[str, Any]) -> str:
    """The table by wanted cause, the misses, and the totals."""
    lines = ["", f"{'wanted':24}{'cases':>6}{'block':>7}{'cause':>7}{'alarms':>8}{'median s':>10}"]
    for cause in sorted({r["wanted_cause"] for r in summary["results"]}):
        rows = [r for r in summary["results"] if r["wanted_cause"] == cause]
        counts = [sum(r[key] for r in rows) for key in ("block_right", "cause_right", "false_alarm")]
        median = statistics.median(r["seconds"] for r in rows)
        lines.append(f"{cause:24}{len(rows):6}{counts[0]:7}{counts[1]:7}{counts[2]:8}{median:10.1f}")
    for miss in summary["misses"]:
        wanted = f"{miss['wanted_cause']} in {miss['wanted_block']}"
        got = f"error {miss['exit_code']}" if miss["exit_code"] else f"{miss['got_cause']} in {miss['got_blocks']}"
        lines += ["", f"miss {miss['name']}: wanted {wanted}, got {got}", f"     {miss['sentence']}"]
    lines += [
        "",
        "{cases} cases: block right in {blocks_right}, cause right in {causes_right}, "
        "{false_alarms} false alarms, {seconds} s".format(**summary),
    ]
    named = [
        r for r in summary["results"] if r["wanted_block"] and set(_several(r["wanted_block"])) <= set(r["blocks"])
    ]
    if named and len(named) < sum(bool(r["wanted_block"]) for r in summary["results"]):
        right = sum(r["block_right"] for r in named)
        lines.append(f"the run has a block of the wanted name in {len(named)} of the faulty cases: right in {right}")
    lines += [f"ran on: {', '.join(summary['targets'])}"] if summary["targets"] else []
    return "\n".join(lines)


def _several(block: str | list[str]) -> list[str]:
    return [block] if isinstance(block, str) else block


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Runs a folder of planted faults through bisect-litert.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds zoo.py and cases.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--only", default="*", metavar="GLOB", help="run the cases whose name matches")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="time limit of one case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary and every result")
    parser.add_argument("--door", choices=["model", "tflite", "file"], default="model", help="how a model comes in")
    parser.add_argument("--split", action="store_true", help="as where the runtime has no switches: split the graph")
    parser.add_argument("--runtime", default="", metavar="VERSION", help="run GPU jobs under that ai-edge-litert")
    parser.add_argument("--runner", default="", metavar="CMD", help='run GPU jobs elsewhere: "ssh HOST", or a command')
    parser.add_argument("--runner-python", default="python3", metavar="FILE", help="the Python that ssh starts there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep run folders and logs there")
    args = parser.parse_args(arguments)
    args.folder = args.folder.resolve()
    if not (args.folder / "cases.json").is_file():
        parser.error(f"{args.folder} has no cases.json")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code says whether the benchmark itself ran, not how well."""
    args = parse(arguments)
    cases = json.loads((args.folder / "cases.json").read_text(encoding="utf-8"))
    names = [name for name in cases if fnmatch.fnmatchcase(name, args.only)]
    if not names:
        raise SystemExit(f"zoo: no case matches {args.only!r}")

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as scratch:
        keep = args.keep.resolve() if args.keep else Path(scratch)
        keep.mkdir(parents=True, exist_ok=True)
        outcomes = run_all(names, cases, args, keep)
    summary = summarise(cases, outcomes, time.monotonic() - started)
    print(report(summary))
    if args.json:
        args.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
