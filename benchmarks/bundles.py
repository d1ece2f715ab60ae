"""Makes a bundle of every culprit in a folder of runs and counts how many of them fail for a stranger (README.md).

    python benchmarks/bundles.py RUNS OUT [--python FILE] [--only GLOB] [--json FILE]

RUNS holds run folders, as `benchmarks/zoo.py --keep` leaves them. Each repro.py is run with FILE, the interpreter of an
environment that holds numpy and ai-edge-litert and nothing else. Each repro_torch.py is run with this interpreter.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bisect_litert.bundles.bundling import Wishes, make_bundle
from bisect_litert.bundles.reproduction import MAX_CULPRITS
from bisect_litert.errors import BisectError
from bisect_litert.record import RunRecord


def measure(run: Path, number: int, out: Path, python: str) -> dict[str, Any]:
    """Bundles one culprit and runs its script."""
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)  # of an earlier measurement with the same OUT
    out.with_name(out.name + ".zip").unlink(missing_ok=True)
    try:
        made = make_bundle(run, Wishes(out, number), lambda _: None)
    except BisectError as error:
        return {"state": "error", "why": error.message}
    repro = out / "repro"
    seconds = time.monotonic() - started
    code = script(python, repro / "repro.py") if made.ops else None
    return {
        "state": made.state,
        "ops": [line.split(" ")[0] for line in made.ops],
        "model_bytes": made.model_bytes,
        "tensor_bytes": sum(path.stat().st_size for path in repro.glob("*.npy") if not path.match("torch_*")),
        "bytes_before": made.sizes[0],
        "bytes_after": made.sizes[1],
        "exit_code": code,
        "twin": made.twin,
        "twin_exit_code": script(sys.executable, repro / "repro_torch.py"),
        "seconds": round(seconds, 1),
    }


def script(python: str, path: Path) -> int | None:
    """Runs a script as a stranger does, from elsewhere; None when there is none."""
    if not path.is_file():
        return None
    return subprocess.run([python, "-I", str(path.resolve())], capture_output=True, cwd="/").returncode


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The counts, and every bundle that does not fail alone."""
    some = [row for row in found.values() if row.get("ops")]
    states = Counter(row["state"] for row in found.values())
    lines = [", ".join(f"{count} {state}" for state, count in states.most_common())]
    fails = sum(row["exit_code"] == 1 for row in some)
    lines.append(f"repro.py ends with 1 in {fails} of {len(found)}")
    twins = Counter(row.get("twin", "none") for row in found.values())
    shown = ", ".join(f"{count} {state}" for state, count in twins.most_common())
    lines.append(f"PyTorch twins: {shown}; {sum(row.get('twin_exit_code') == 1 for row in found.values())} end with 1")
    if some:
        keys = ("model_bytes", "tensor_bytes", "seconds", "bytes_before", "bytes_after")
        middle = {key: statistics.median(row[key] for row in some) for key in keys}
        ops = statistics.median(len(row["ops"]) for row in some)
        lines.append(
            f"median: {ops:g} ops, {middle['model_bytes']:g} bytes of model, {middle['tensor_bytes']:g} of tensors, "
            f"{middle['seconds']:.1f} s"
        )
        lines.append(
            f"median of inputs, results and constants: {middle['bytes_before']:g} bytes before their dimensions were "
            f"halved, {middle['bytes_after']:g} after"
        )
    lines += [f"{name}: {row}" for name, row in found.items() if row["state"] != "alone" or row["exit_code"] != 1]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code says whether the benchmark itself ran."""
    parser = argparse.ArgumentParser(description="Bundles every culprit of a folder of runs and runs the bundles.")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="runs each repro.py")
    parser.add_argument("--only", default="*", metavar="GLOB", help="bundle the runs whose name matches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result")
    args = parser.parse_args(arguments)
    python = shutil.which(args.python)
    if python is None:
        parser.error(f"{args.python} is no interpreter")
    args.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for run in sorted(
        path.parent for path in args.runs.glob("*/run.json") if fnmatch.fnmatch(path.parent.name, args.only)
    ):
        for number in range(1, min(MAX_CULPRITS, len(RunRecord.load(run).culprits)) + 1):
            name = f"{run.name}-{number}"
            found[name] = measure(run, number, args.out / name, python)
            print(name, found[name], flush=True)
    print("\n" + report(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
