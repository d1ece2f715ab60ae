"""Plants one fault behind one block of generated graphs, at the process boundary, and counts how often exactly that
block is named.

    python benchmarks/fault_injection.py [--graphs N] [--sample N] [--kinds KIND,...] [--limit SECONDS] [--split]
        [--json FILE]

The GPU is a stand-in (tests/faulty_gpu.py): the CPU, rounding as an honest fp16 device does, with noise, NaN, zeros,
a wrong scale, swapped outputs, an unwritten buffer, a crash or a hang behind block k. Every graph is converted once.
"""

# mypy: disable-error-code="assignment, misc, attr-defined"
from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from faulty_gpu import Fault, FaultyGpu
from small_models import numbers
from test_healing import BLOCKS, WIDTH, dag

from bisect_litert import bisect
from bisect_litert.devices import machines
from bisect_litert.graphs import stored_conversion
from bisect_litert.graphs.graph import Graph

KINDS = ("noise", "nan", "zeros", "scale", "swap", "unwritten", "crash", "hang")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=8)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sample", type=int, default=0, help="faults drawn for each graph; 0 means all of them")
    parser.add_argument("--start", type=int, default=0, help="seed of the first graph")
    parser.add_argument("--limit", type=float, default=1e9, help="stop after so many seconds")
    parser.add_argument("--split", action="store_true", help="a GPU that heeds none of the delegate's switches")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fault-injection-"))
    convert = stored_conversion.convert
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for seed in range(arguments.start, arguments.start + arguments.graphs):
        path = folder / f"{seed}.tflite"

        def once(module: Any, args: Any, kwargs: Any, _: Path, log: Path, path: Path = path) -> Graph:
            if not path.exists():
                convert(module, args, kwargs, path, log)
            return Graph.read(path)

        stored_conversion.convert = once
        planted = [(kind, k) for kind in arguments.kinds.split(",") for k in range(BLOCKS)]
        if arguments.sample:
            planted = random.Random(seed).sample(planted, min(arguments.sample, len(planted)))
        for kind, k in planted:
            if time.monotonic() - started > arguments.limit:
                break
            faults = (Fault(f"n{k}", kind),)
            machines.Runner = type("Planted", (FaultyGpu,), {"faults": faults, "switches": not arguments.split})
            record = bisect(dag(seed), numbers(8, WIDTH, seed=9), blocks="*", cache=False)
            named = [c.block for c in record.culprits]
            rows.append({"graph": seed, "kind": kind, "k": k, "named": named, "cause": str(record.verdict.cause)})
            if named != [f"n{k}"]:
                print(f"graph {seed} {kind} behind n{k}: named {named}, {record.verdict.summary}", flush=True)
    print(f"{'kind':<10} {'faults':>6} {'exactly k':>9}  causes")
    for kind in arguments.kinds.split(","):
        mine = [r for r in rows if r["kind"] == kind]
        right = sum(r["named"] == [f"n{r['k']}"] for r in mine)
        print(f"{kind:<10} {len(mine):>6} {right:>9}  {', '.join(sorted({r['cause'] for r in mine}))}")
    total = sum(r["named"] == [f"n{r['k']}"] for r in rows)
    seconds = time.monotonic() - started
    print(
        f"{len(rows)} faults in {len({r['graph'] for r in rows})} graphs: exactly k named in {total}, {seconds:.0f} s"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
