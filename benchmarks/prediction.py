"""Counts what `--predict` says of a folder of planted faults: right blocks, and predictions where nothing overflows.

    python benchmarks/prediction.py DIR [--only GLOB]

DIR is as for benchmarks/zoo.py. Only faults of range can be predicted; for every other cause nothing is wanted. Docs:
docs/prediction.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bisect_litert.models.blocks import select
from bisect_litert.programs.prediction import predict


def wanted(case: Mapping[str, Any]) -> list[str]:
    """Returns the blocks that leave the range, in order."""
    blocks = case.get("blocks") or [case["block"]]
    causes = case.get("causes") or [case["cause"]] * len(blocks)
    return [block for block, cause in zip(blocks, causes, strict=True) if cause == "overflow"]


def main() -> int:
    """Prints one line a case that is not as wanted, and the counts; returns how many those are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="*", metavar="GLOB")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("zoo", options.folder / "zoo.py")
    assert spec is not None, "a .py file always has a spec"
    assert spec.loader is not None, "and that a loader"
    zoo = importlib.util.module_from_spec(spec)
    sys.modules["zoo"] = zoo
    spec.loader.exec_module(zoo)
    cases = json.loads((options.folder / "cases.json").read_text(encoding="utf-8"))
    seconds: list[float] = []
    right = faults = false = unpredictable = wrong = 0
    for name in fnmatch.filter(cases, options.only):
        module, inputs = zoo.load(name)
        args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
        want, started = wanted(cases[name]), time.monotonic()
        try:
            predicted = predict(module, args, kwargs, select(module))
        except Exception as error:
            unpredictable += 1
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        seconds.append(time.monotonic() - started)
        got = [block.name for block in predicted.leaving]
        faults += bool(want)
        right += bool(want) and got == want
        false += bool(got) and not want
        if got != want:
            wrong += 1
            origins = [f"{b.name} ({b.kind}, {b.origin.target if b.origin else '?'})" for b in predicted.leaving]
            print(f"{name}: wanted {want}, predicted {origins}; measured cause: {cases[name]['cause']}")
    healthy = len(seconds) - faults
    median = statistics.median(seconds) if seconds else 0.0
    print(
        f"{right} of {faults} range faults predicted at the right block, {false} of {healthy} others predicted falsely,"
    )
    print(f"{unpredictable} not predictable; {median:.2f} s in the median")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
