"""How fast two tensors are compared, against a plain copy of one of them, interleaved.

    python benchmarks/metrics_rate.py [--elements N ...] [--repeat N] [--json FILE]

Comparing reads two tensors once, copying reads one and writes one: the same traffic. Printed are the medians and their
ratio, for `compare` (errors, correlation, counts) and `compare_by_scale` (which also looks for two scales), in float32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import measuring
from bisect_litert.measuring.metrics import compare, compare_by_scale

LEAST = 0.05
"""Seconds that one sample takes at least: what is over too soon is repeated."""


def timed(run: Callable[[], object]) -> float:
    """Returns seconds per call of one sample."""
    calls = 0
    start = time.perf_counter()
    while True:
        run()
        calls += 1
        seconds = time.perf_counter() - start
        if seconds >= LEAST:
            return seconds / calls


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, nargs="+", default=[10**n for n in range(5, 9)], metavar="N")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = measuring.about()
    measuring.show(about)
    print(f"{'elements':>10} {'copy ms':>9} {'compare ms':>11} {'ratio':>6} {'by scale ms':>12} {'ratio':>6}")
    rows = []
    for count in arguments.elements:
        draw = np.random.default_rng(0)
        reference = draw.standard_normal(count, np.float32)
        target = reference + np.float32(1e-3) * draw.standard_normal(count, np.float32)
        place = np.zeros_like(reference)
        jobs: dict[str, Callable[[], object]] = {
            "copy": partial(np.copyto, place, reference),
            "compare": partial(compare, reference=reference, target=target),
            "by_scale": partial(compare_by_scale, reference=reference, target=target),
        }
        samples: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(arguments.repeat):
            for name, job in jobs.items():
                samples[name].append(timed(job))
        ms = {name: 1e3 * statistics.median(values) for name, values in samples.items()}
        # Of each round, so that what disturbs the machine for a while disturbs both sides.
        ratio = {
            name: statistics.median(s / c for s, c in zip(samples[name], samples["copy"], strict=True))
            for name in ("compare", "by_scale")
        }
        rows.append({"elements": count, "ms": ms, "ratio": ratio})
        print(
            f"{count:>10} {ms['copy']:>9.3f} {ms['compare']:>11.3f} {ratio['compare']:>6.2f} "
            f"{ms['by_scale']:>12.3f} {ratio['by_scale']:>6.2f}",
            flush=True,
        )
    measuring.save(arguments.json, about, rows)


if __name__ == "__main__":
    main()
