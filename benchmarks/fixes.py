"""Fixes every culprit of a folder of planted faults and counts how many end in a proven fix (README.md).

    python benchmarks/fixes.py DIR [--only GLOB] [--limit SECONDS] [--json FILE [--resume]] [--keep DIR]

DIR holds zoo.py and cases.json as for `benchmarks/zoo.py`. A case counts when a fault is wanted and the run names one;
healthy cases are left out. A run that was stopped goes on with --resume. What a fix saved is then applied by a process
that has seen nothing else of it, to a freshly loaded model, which is converted and run anew: a fix that does not hold
there is no fix.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.zoo import load_zoo

AIMED_AT = ("overflow", "wrong-kernel")


@dataclass(frozen=True)
class Row:
    """One culprit of one case."""

    case: str
    block: str
    cause: str
    kind: str
    outcome: str
    rewrite: str
    region: str
    why_not: str
    torch32: float
    torch64: float
    torch_own: float
    """Where fp64 decided whether torch computes the same: what torch's own fp32 result is off by; else nan."""
    torch_off: float
    block_error: tuple[float, float]
    output_error: tuple[float, float]
    tried: int
    kept_off: bool
    seconds: float
    costs: Mapping[str, float]
    checked: str
    """"right", "wrong" or why it was not checked."""


def fix_case(folder: Path, name: str, out: Path) -> list[Row]:
    """Bisects a case and fixes it; leaves what a user would get."""
    import bisect_litert.models.preparation as preparation
    from bisect_litert.entrances import bisect_loaded
    from bisect_litert.fixing.engine import fix
    from bisect_litert.fixing.folder import leave
    from bisect_litert.request import BisectRequest

    zoo = load_zoo(folder)
    started = time.monotonic()
    module, inputs = zoo.load(name)
    loaded = preparation.prepare(module, inputs, label=name)
    request = BisectRequest(model=name, blocks=("enc.*",), out=out / "run", force=True)
    found = bisect_loaded(loaded, request)
    if not found.culprits:
        return []
    fixed = fix(loaded, found, request)
    record = leave(fixed, request, out / "fix", lambda _: None, check=False)
    took = time.monotonic() - started
    rows = []
    for culprit in record.culprits:
        done = culprit.fix if culprit.outcome == "fixed" else None
        costs = {}
        if record.costs is not None:
            pairs = {
                "ops": record.costs.ops,
                "bytes": record.costs.bytes,
                "cpu": record.costs.cpu_seconds,
                "gpu": record.costs.gpu_seconds,
            }
            costs = {key: pair[1] / pair[0] for key, pair in pairs.items() if pair[0] and not isnan(pair[0])}
        rows.append(
            Row(
                case=name,
                block=culprit.block,
                cause=str(culprit.cause),
                kind=culprit.kind,
                outcome=str(culprit.outcome),
                rewrite=done.rewrite if done else "",
                region=done.region if done else "",
                why_not=culprit.why_not,
                torch32=record.torch32,
                torch64=record.torch64,
                torch_own=record.torch_own,
                torch_off=record.torch_off,
                block_error=(culprit.before_error, done.block_error if done else float("nan")),
                output_error=(record.output_before, record.output_after),
                tried=len(culprit.attempts),
                kept_off=culprit.kept_off is not None and culprit.kept_off.right,
                seconds=round(took, 1),
                costs=costs,
                checked="",
            )
        )
    return rows


def check_case(folder: Path, name: str, out: Path) -> str:
    """Applies what a fix saved to a freshly loaded model."""
    import bisect_litert.models.preparation as preparation
    from bisect_litert.fixing.check import check

    zoo = load_zoo(folder)
    module, inputs = zoo.load(name)
    loaded = preparation.prepare(module, inputs, label=name)
    found = check(loaded, (out / "fix" / "rewrites.py").read_text(encoding="utf-8"), out)
    return "right" if found.right(1e-2) else f"wrong: {found}"


def _serve(job: str, connection: Any, folder: Path) -> None:
    """A process of its own: takes (name, folder), gives answers, until it gets None."""
    os.setsid()  # so that what it starts can be ended together with it
    for name, out in iter(connection.recv, None):
        out.mkdir(parents=True, exist_ok=True)
        log = os.open(out / f"{job}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        try:
            connection.send((fix_case if job == "fix" else check_case)(folder, name, out))
        except BaseException as error:
            traceback.print_exc()
            connection.send(f"{type(error).__name__}: {error}")


class Helper:
    """A process that fixes, or one that checks: they share nothing but files."""

    def __init__(self, job: str, folder: Path, limit: float) -> None:
        self.job, self.folder, self.limit = job, folder, limit
        self.process: Any = None

    def ask(self, name: str, out: Path) -> Any:
        """Returns the process's answer, or a string that says what went wrong; a dead process is replaced."""
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(self.job, theirs, self.folder))
            self.process.start()
            theirs.close()
        try:
            self.connection.send((name, out))
            if self.connection.poll(self.limit):
                return self.connection.recv()
            trouble = f"no answer within {self.limit:g} s"
        except (EOFError, OSError):
            trouble = "the process died"
        self.stop()
        return trouble

    def stop(self) -> None:
        """Ends the process and what it started."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join(10)


def _torch(claimed: Sequence[Row]) -> list[str]:
    """How far the fixes are from torch's own result: where the limit held, and where fp64 decided."""
    strict = [row for row in claimed if isnan(row.torch_own)]
    by_fp64 = [row for row in claimed if not isnan(row.torch_own)]
    lines = []
    if strict:
        lines.append(
            f"torch's own result, strict: {len(strict)} of {len(claimed)}, differs by at most"
            f" {max(row.torch32 for row in strict):.2g} in fp32"
        )
    if by_fp64:
        lines.append(f"torch's own result, by fp64: {len(by_fp64)} of {len(claimed)}")
    for row in by_fp64:
        lines.append(
            f"  {row.case} {row.block}: torch's own fp32 result is off by {row.torch_own:.2g} from fp64; the fix is"
            f" off by {row.torch_off:.2g} (fp32 {row.torch32:.2g}, fp64 {row.torch64:.2g})"
        )
    return lines


def report(rows: Sequence[Row], failed: Mapping[str, str]) -> str:
    """The counts, and what is left with its reason."""
    lines = [f"{'cause':24}{'culprits':>9}{'fixed':>7}{'share':>7}"]
    causes = sorted({row.cause for row in rows})
    for cause in causes:
        some = [row for row in rows if row.cause == cause]
        fixed = sum(row.outcome == "fixed" for row in some)
        lines.append(f"{cause:24}{len(some):9}{fixed:7}{fixed / len(some):7.0%}")
    aimed = [row for row in rows if row.cause in AIMED_AT]
    if aimed:
        fixed = sum(row.outcome == "fixed" for row in aimed)
        lines.append(
            f"{' and '.join(AIMED_AT)}: {fixed} of {len(aimed)} ({fixed / len(aimed):.0%}) end in a proven fix"
        )
    claimed = [row for row in rows if row.outcome == "fixed"]
    if claimed:
        lines += [
            *_torch(claimed),
            f"saved files that hold in a process of their own: "
            f"{sum(row.checked == 'right' for row in claimed)} of {len(claimed)}",
            f"median seconds a case: {statistics.median(row.seconds for row in rows):.0f}",
        ]
        for key in ("ops", "bytes", "cpu", "gpu"):
            some_costs = [row.costs[key] for row in claimed if key in row.costs and not isnan(row.costs[key])]
            if some_costs:
                lines.append(
                    f"{key} after / before: median {statistics.median(some_costs):.2f}, most {max(some_costs):.2f}"
                )
    left = [row for row in rows if row.outcome != "fixed"]
    lines += ["", "not fixed:"] if left else []
    for row in left:
        way = " (right with its ops kept off the GPU)" if row.kept_off else ""
        lines.append(f"  {row.case} {row.block}, {row.cause}: {row.why_not}{way}")
    lines += [f"  {name}: {why}" for name, why in failed.items()]
    wrong = [row for row in claimed if row.checked != "right"]
    lines += [f"  {row.case} {row.block} was called fixed, and: {row.checked}" for row in wrong]
    return "\n".join(lines)


def _answer(fixer: Helper, checker: Helper, name: str, out: Path) -> str | list[dict[str, Any]]:
    """Fixes a case and has it checked; returns its rows, or what went wrong."""
    answer: str | list[Row] = fixer.ask(name, out)
    if isinstance(answer, str):
        return answer
    checked = ""
    if any(row.outcome == "fixed" for row in answer):
        checked = checker.ask(name, out)
        if any(row.outcome != "fixed" for row in answer) and checked.startswith("wrong"):
            checked = "not all of the case is fixed, so its outputs are not right"
    return [{**asdict(row), "checked": checked if row.outcome == "fixed" else ""} for row in answer]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code says whether every fix that is claimed holds."""
    parser = argparse.ArgumentParser(description="Fixes the culprits of a folder of planted faults.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds zoo.py and cases.json")
    parser.add_argument("--only", default="*", metavar="GLOB", help="run the cases whose name matches")
    parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="time limit of one case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    parser.add_argument("--resume", action="store_true", help="leave out what is in the JSON file already")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what the fixes leave there")
    args = parser.parse_args(arguments)
    folder = args.folder.resolve()
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    names = [n for n, c in cases.items() if c["cause"] not in ("none", "cannot-test") and fnmatch.fnmatch(n, args.only)]
    if not names:
        parser.error(f"no faulty case matches {args.only!r}")
    done: dict[str, Any] = {}
    if args.resume and args.json and args.json.exists():
        done = json.loads(args.json.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="fixes-") as scratch:
        keep = args.keep.resolve() if args.keep else Path(scratch)
        fixer, checker = Helper("fix", folder, args.limit), Helper("check", folder, args.limit)
        for number, name in enumerate(names, 1):
            if name not in done:
                done[name] = _answer(fixer, checker, name, keep / name)
                if args.json:
                    args.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            said = done[name]
            for line in [said] if isinstance(said, str) else said:
                words = line
                if not isinstance(line, str):
                    words = f"{line['block']} {line['cause']}: {line['outcome']} {line['rewrite']} {line['checked']}"
                print(f"[{number:3}/{len(names)}] {name}: {words}", flush=True)
        fixer.stop()
        checker.stop()
    rows = [Row(**row) for name in names if not isinstance(done[name], str) for row in done[name]]
    print("\n" + report(rows, {name: done[name] for name in names if isinstance(done[name], str)}))
    return int(any(row.checked.startswith("wrong") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
