"""Measures what healthy blocks cost in fp16 on the GPU: the numbers the thresholds stand on (docs/thresholds.md).

    python benchmarks/healthy_blocks.py [--only GLOB] [--seeds N] [--size N] [--json FILE]

Every kind of block stands between plain residual blocks in a model of several, which goes through
`bisect_litert.bisect` like any other. None of them has a fault, so whatever is out of line here is a threshold's fault,
or a kernel's that docs/thresholds.md names.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from healthy_chains import chain  # type: ignore[import-not-found]
from healthy_images import ALONE, IMAGES  # type: ignore[import-not-found]
from healthy_tokens import JUMPS, TOKENS  # type: ignore[import-not-found]

PATTERNS = ("plain.*", "healthy.*")
QUANTITIES = {
    "local": "local error on the GPU",
    "expected": "expected: local error of rounding alone",
    "ratio": "ratio: local / max(expected, half an fp16 unit)",
    "against_limit": "local / the limit that was used",
    "half_ratio": "emulated fp16's local error / cost",
    "range_hint": "emulated fp16's local error / max(expected, a quarter of an fp16 unit)",
    "allowance_used": "ratio / allowance, where the allowance is above 1",
    "cpu": "local error on the CPU",
    "fp32_cost": "fp32 cost: torch fp32 against fp64, local",
    "cpu_against_limit": "CPU local error / its limit",
    "cpu_over_cost": "CPU local error / fp32 cost",
    "tap_tolerance": "tap: CPU cumulative error / tolerance",
    "amplification": "amplification",
}


def fp32_costs(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], seed: int) -> dict[str, tuple[float, float]]:
    """Local and cumulative relative L2 error of torch in fp32 against fp64, by block."""
    from bisect_litert.measuring.metrics import compare
    from bisect_litert.models import blocks, model_file
    from bisect_litert.models.reference import TorchReference

    loaded = model_file.prepare(model, dict(inputs), label="healthy")
    reference = TorchReference(loaded.module, loaded.args, loaded.kwargs, blocks.select(loaded.module, PATTERNS), seed)
    truth, double = reference.run(), reference.run64()
    forced = reference.force64(truth.taps) if double else None
    if double is None or forced is None:
        return {}

    def error(wide: np.ndarray, narrow: np.ndarray) -> float:
        return compare(reference=wide, target=narrow).relative_l2

    return {
        p.block_key: (error(forced.taps[p.key], truth.taps[p.key]), error(double.taps[p.key], truth.taps[p.key]))
        for p in truth.points
    }


def measure(names: Sequence[str], seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Runs one model of several blocks and returns a row per block and one for the model."""
    import bisect_litert
    from bisect_litert.errors import BisectError
    from bisect_litert.vocabulary import RunName

    model, inputs = chain(names, seed)
    started = time.monotonic()
    summary: dict[str, Any] = {"blocks": list(names), "seed": seed}
    try:
        record = bisect_litert.bisect(model, inputs, blocks=PATTERNS, name=f"healthy-{seed}", seed=seed)
    except BisectError as error:
        return [], {**summary, "cause": "cannot-test", "said": f"{error.message} {error.hint}"}
    costs = fp32_costs(model, inputs, seed)
    target = RunName.GPU if record.target == "gpu" else RunName.FP16
    rows = []
    for block in record.blocks:
        if target not in block.errors or block.name == "(output)":
            continue
        local, total = costs.get(block.name, (0.0, 0.0))
        rows.append(_row(block, target, record.settings, local, total) | {"seed": seed, "chain": list(names)})
    outputs = [o for o in record.outputs if o.comparison is not None]
    summary |= {
        "target": record.target,
        "adapter": record.placement.adapter,
        "environment": dict(record.environment),
        "cause": str(record.verdict.cause),
        "summary": record.verdict.summary,
        "culprits": [(c.block, str(c.cause), c.evidence[:3]) for c in record.culprits],
        "notes": list(record.verdict.notes),
        "refused": sorted({r.op for r in record.placement.refusals}),
        "output_error": max((o.comparison.relative_l2 for o in outputs if o.comparison), default=nan),
        "output_expected": max((o.expected for o in outputs), default=nan),
        "gate_factor": max((_factor(o) for o in outputs), default=nan),
        "seconds": time.monotonic() - started,
    }
    return rows, summary


def _row(block: Any, target: Any, settings: Any, fp32_cost: float, fp32_total: float) -> dict[str, Any]:
    from bisect_litert.measuring.metrics import FP16_UNIT
    from bisect_litert.search.culprits import Reading, limit
    from bisect_litert.taps.tapping import LOOSEST, TIGHTEST
    from bisect_litert.vocabulary import RunName

    def local(run: Any) -> Any:
        errors = block.errors.get(run)
        return errors.local if errors else None

    def level(comparison: Any) -> float:
        return nan if comparison is None else float(comparison.relative_l2)

    measured = local(target)
    expected = replace(measured, relative_l2=block.expected) if measured else None
    reading = Reading(block.name, block.name, (), None, measured, expected, None, allowance=block.allowance)
    cost, allowed = reading.cost, limit(reading, settings)
    cpu = block.errors.get(RunName.CPU)
    cpu_local, cpu_total = level(local(RunName.CPU)), level(cpu.cumulative if cpu else None)
    tolerance = min(LOOSEST, max(TIGHTEST, 100 * fp32_total))
    return {
        "block": block.name,
        "kind": block.name.rpartition(".")[2] if block.name.startswith("healthy.") else "(plain)",
        "residency": str(block.residency),
        "origin": ",".join(sorted({str(t.origin) for t in block.taps})),
        "mark": str(block.mark),
        "finite": bool(measured and measured.finite_agreement),
        "local": level(measured),
        "expected": block.expected,
        "ratio": block.ratio,
        "allowance": block.allowance,
        "limit": allowed,
        "against_limit": level(measured) / allowed,
        "half_ratio": level(local(RunName.FP16)) / cost,
        "range_hint": level(local(RunName.FP16)) / max(block.expected, FP16_UNIT / 2),
        "allowance_used": block.ratio / block.allowance if block.allowance > 1 else nan,
        "cpu": cpu_local,
        "fp32_cost": fp32_cost,
        "cpu_against_limit": cpu_local / max(settings.conversion_limit, 100 * fp32_cost),
        "cpu_over_cost": cpu_local / fp32_cost if fp32_cost else nan,
        "tap_tolerance": cpu_total / tolerance,
        "amplification": block.amplification,
    }


def _factor(output: Any) -> float:
    """How many times apart the tapped and the untapped run's output errors are, 1 when equal."""
    if output.untapped is None:
        return nan
    low, high = sorted((output.comparison.relative_l2, output.untapped.relative_l2))
    return 1.0 if low == high else (high / low if low else nan)


def quantiles(values: Sequence[float]) -> tuple[float, float, float, int]:
    """Median, 99th percentile and maximum of what is finite, and how many that were."""
    known = np.array([v for v in values if isfinite(v)])
    if not known.size:
        return nan, nan, nan, 0
    return float(np.median(known)), float(np.percentile(known, 99)), float(known.max()), int(known.size)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the worst of all seeds per kind, in Markdown, so that it can be put into the docs as it is."""
    print("| block | local | expected | ratio | allowance | limit | local/limit | emu fp16 | CPU | fp32 | ampl. | on |")
    print("| --- | " + "---: | " * 10 + "--- |")
    for kind in dict.fromkeys(r["kind"] for r in rows):
        own = [r for r in rows if r["kind"] == kind]

        def top(key: str, own: Sequence[Mapping[str, Any]] = own) -> float:
            return max((float(r[key]) for r in own if isfinite(r[key])), default=nan)

        where = "/".join(sorted({r["residency"] for r in own}))
        marks = "".join(f" {m}" for m in sorted({r["mark"] for r in own} - {"ok"}))
        print(
            f"| {kind} | {top('local'):.1e} | {top('expected'):.1e} | {top('ratio'):.2f} | {top('allowance'):.1f} | "
            f"{top('limit'):.1e} | {top('against_limit'):.2f} | {top('half_ratio'):.2f} | {top('cpu'):.1e} | "
            f"{top('fp32_cost'):.1e} | {top('amplification'):.2f} | {where}{marks} |"
        )


def print_summary(every_row: Sequence[Mapping[str, Any]], every_model: Sequence[Mapping[str, Any]]) -> None:
    """Prints median, 99th percentile and maximum of every quantity, over what ran on the GPU and makes no jumps."""
    models = [m for m in every_model if not set(m["blocks"]) & set(JUMPS)]
    rows = [r for r in every_row if r["residency"] not in ("cpu", "mixed") and r["kind"] not in JUMPS]
    print(f"\n{len(rows)} block calls of {len({r['kind'] for r in rows})} kinds in {len(models)} models\n")
    print("| quantity | median | 99% | maximum | of | where |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    tables: list[tuple[str, list[tuple[float, str]]]] = [
        (words, [(float(r[key]), r["kind"]) for r in rows]) for key, words in QUANTITIES.items()
    ]
    tables += [
        (words, [(float(m[key]), " ".join(m["blocks"][:2])) for m in models if key in m])
        for key, words in (
            ("output_error", "model output error"),
            ("output_expected", "model output error of rounding alone"),
            ("gate_factor", "tapped against untapped output error, factor"),
        )
    ]
    for words, values in tables:
        median, high, most, count = quantiles([v for v, _ in values])
        where = max((p for p in values if isfinite(p[0])), default=(nan, ""))[1]
        print(f"| {words} | {median:.2g} | {high:.2g} | {most:.2g} | {count} | {where} |")
    lost = sorted({r["kind"] for r in every_row if not r["finite"]})
    print(f"\nnot finite where torch is: {', '.join(lost) or 'none'}")
    for model in every_model:
        if model["cause"] != "none":
            said = model.get("culprits") or model.get("said") or model.get("summary")
            print(f"{model['cause']}: {' '.join(model['blocks'])}, seed {model['seed']}: {said}")


def chains(only: str, size: int) -> Iterator[list[str]]:
    """Deals the kinds that are wanted out to models."""
    for kinds in (TOKENS, IMAGES):
        names = [n for n in fnmatch.filter(kinds, only) if n not in ALONE]
        yield from (names[at : at + size] for at in range(0, len(names), size))
    yield from ([name] for name in fnmatch.filter([*ALONE, *JUMPS], only))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="which kinds, as a glob")
    parser.add_argument("--seeds", type=int, default=3, help="weights and inputs to draw")
    parser.add_argument("--size", type=int, default=8, help="blocks in one model")
    parser.add_argument("--json", type=Path, help="write everything here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    parts = list(chains(arguments.only, arguments.size))
    for seed, part in [(seed, part) for seed in range(arguments.seeds) for part in parts]:
        new, summary = measure(part, seed)
        rows += new
        models.append(summary)
        seconds = summary.get("seconds", nan)
        print(f"{summary['cause']:<22} {seconds:6.1f} s  seed {seed}  {' '.join(part)}", file=sys.stderr, flush=True)
        if arguments.json:  # as it goes, since it takes long
            arguments.json.write_text(json.dumps({"blocks": rows, "models": models}, indent=1))
    if not rows:
        sys.exit(f"no block was measured; the kinds are {', '.join([*TOKENS, *IMAGES, *JUMPS])}")
    print(f"{models[0].get('adapter')}; " + ", ".join(f"{k} {v}" for k, v in models[0]["environment"].items()) + "\n")
    print_table(rows)
    print_summary(rows, models)


if __name__ == "__main__":
    main()
