"""One table: what each door makes of the same planted faults, and where two of them disagree.

    python benchmarks/doors.py DIR [--only GLOB ...] [--door NAME ...] [--runtime VERSION ...] [--runner CMD]
        [--out FILE] [--jobs N] [--limit SECONDS] [--keep DIR]

DIR is a folder of planted faults as benchmarks/zoo.py takes it, which also runs and scores every case. The doors are
the module, the module beside a .tflite file, that file alone, the module with its GPU jobs over ssh (an sshd of our own
on loopback, unless --runner names a machine), and the module with its GPU jobs under other versions of ai-edge-litert.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks import zoo  # noqa: E402 (found beside this file, however it is started)

SPREAD = (
    "a_ln_10",
    "a_ln_1000",
    "b_rms_1000",
    "e_att_qk_big_unscaled",
    "f_log_eps1e-8",
    "g_cumsum_64",
    "g_cumsum_4096",
    "g_sin_1e4",
    "h_sdpa_1e9",
    "h_bmmadd_1x4x16x16",
    "n_chaos_2.0",
    "n_overflow_then_kernel",
)
"""Cases of different causes, where none are asked for and DIR has them."""
DOORS = ("model", "tflite", "file", "ssh", "runtimes")
TITLES = {"model": "model.py", "tflite": "model.py --tflite", "file": ".tflite alone", "ssh": "ssh"}
COMMANDS = {
    "model": "bisect-litert model.py",
    "tflite": "bisect-litert model.py --tflite model.tflite",
    "file": "bisect-litert model.tflite",
    "ssh": 'bisect-litert model.py --runner "ssh HOST"',
}


@dataclass(frozen=True)
class Door:
    """One way in, with what zoo.py is told for it."""

    name: str
    title: str
    command: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of zoo.py's command line, those that differ from its defaults."""


def doors(names: Sequence[str], runtimes: Sequence[str], runner: str, stack: ExitStack) -> list[Door]:
    """Returns the doors that are asked for and to be had here.

    Args:
        names: Of `DOORS`.
        runtimes: Versions of ai-edge-litert.
        runner: Reaches another machine; empty means an sshd of our own.
        stack: Keeps that sshd alive.
    """
    found = [Door(name, TITLES[name], COMMANDS[name], {"door": name}) for name in DOORS[:3] if name in names]
    if "ssh" in names:
        runner = runner or loopback(stack)
        if runner:
            ours = {"runner": runner, "runner_python": sys.executable}
            found.append(Door("ssh", TITLES["ssh"], COMMANDS["ssh"], ours))
        else:
            print("doors: no sshd here (Debian, Ubuntu: apt install openssh-server); ssh is left out.", file=sys.stderr)
    if "runtimes" in names:
        found += [Door(v, v, f"bisect-litert model.py --runtime {v}", {"runtime": v}) for v in runtimes]
    return found


def loopback(stack: ExitStack) -> str:
    """Starts an sshd on loopback and returns what --runner takes; empty where there is none."""
    ssh: Any = importlib.import_module("loopback_ssh")  # of the tests
    if ssh.SSHD is None:
        return ""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="doors-sshd-")))
    return str(stack.enter_context(ssh.LoopbackSsh(folder / "sshd")).command())


def says(outcome: zoo.Outcome) -> str:
    """What a door said of a case: "overflow in enc.b1, wrong-kernel in enc.b3"."""
    if outcome.exit_code:
        return f"error {outcome.exit_code}"
    if not outcome.culprits:
        return outcome.cause
    return ", ".join(f"{cause} in {block}" for block, cause in outcome.culprits)


def wants(case: Mapping[str, Any]) -> str:
    """What a case wants, in the same words."""
    if "blocks" in case:
        return ", ".join(f"{cause} in {block}" for block, cause in zip(case["blocks"], case["causes"], strict=True))
    return f"{case['cause']} in {case['block']}" if case["block"] else str(case["cause"])


def table(
    cases: Mapping[str, Mapping[str, Any]],
    found: Sequence[Door],
    outcomes: Mapping[str, Mapping[str, zoo.Outcome]],
    seconds: Mapping[str, float],
) -> str:
    """The Markdown: a line per case, a line per door, and what the doors that are not as wanted say.

    Args:
        cases: What is wanted, by name.
        found: The doors, in the order of the columns.
        outcomes: By door and case; cases that a door was not given are left out.
        seconds: What each door's cases took together.
    """
    names = [name for name in cases if any(name in outcomes[door.name] for door in found)]
    lines = [
        f"| case | wanted | {' | '.join(door.title for door in found)} |",
        f"| --- | --- |{' --- |' * len(found)}",
    ]
    different: list[str] = []
    for name in names:
        cells = []
        for door in found:
            outcome = outcomes[door.name].get(name)
            if outcome is None:
                cells.append("")
                continue
            right = zoo.score(cases[name], outcome)
            cells.append("✓" if right.block and right.cause else says(outcome))
            if not (right.block and right.cause):
                different.append(f"- `{name}`, {door.title}: {outcome.sentence}")
        lines.append(f"| `{name}` | {wants(cases[name])} | {' | '.join(cells)} |")
    lines += ["", "| door | command | cases | block right | cause right | false alarms | seconds |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for door in found:
        scores = [zoo.score(cases[name], outcome) for name, outcome in outcomes[door.name].items()]
        counts = (sum(s.block for s in scores), sum(s.cause for s in scores), sum(s.false_alarm for s in scores))
        numbers = " | ".join(map(str, (len(scores), *counts, round(seconds[door.name]))))
        lines.append(f"| {door.title} | `{door.command}` | {numbers} |")
    if different:
        lines += ["", "Where a door is not as wanted:", "", *different]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code says whether the benchmark itself ran, not how well."""
    parser = argparse.ArgumentParser(description="Runs the same planted faults through every door.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="holds zoo.py and cases.json")
    parser.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="cases (default: a spread of twelve)")
    parser.add_argument("--door", nargs="+", choices=DOORS, default=DOORS, help="doors (default: all)")
    parser.add_argument("--runtime", nargs="+", default=["2.1.3", "2.1.6", "2.3.0"], metavar="VERSION")
    parser.add_argument(
        "--runner", default="", metavar="CMD", help="reaches another machine (default: ssh to loopback)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="time limit of one case")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep run folders and logs there")
    args = parser.parse_args(arguments)
    folder = args.folder.resolve()
    if not (folder / "cases.json").is_file():
        parser.error(f"{args.folder} has no cases.json")
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    wanted = args.only or [name for name in SPREAD if name in cases] or ["*"]
    names = [name for name in cases if any(fnmatch.fnmatchcase(name, glob) for glob in wanted)]
    if not names:
        parser.error(f"no case matches {' '.join(wanted)}")

    outcomes: dict[str, dict[str, zoo.Outcome]] = {}
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="doors-")))
        found = doors(args.door, args.runtime, args.runner, stack)
        for number, door in enumerate(found, 1):
            print(f"-- {door.title}", flush=True)
            keep = (args.keep.resolve() if args.keep else scratch) / door.name
            keep.mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            asked = zoo.parse([str(folder), "--jobs", str(args.jobs), "--limit", str(args.limit)])
            for name, value in door.options.items():
                setattr(asked, name, value)
            outcomes[door.name] = zoo.run_all(names, cases, asked, keep)
            seconds[door.name] = time.monotonic() - started
            done = table(cases, found[:number], outcomes, seconds)
            if args.out:  # what is there is there, whatever becomes of the next door
                args.out.write_text(done, encoding="utf-8")
    print(f"\n{done}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
