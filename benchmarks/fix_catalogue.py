"""Writes docs/fixes.md: every rewrite, and what its example came to on the GPUs it was measured on (docs/fixes.json).

python benchmarks/fix_catalogue.py                     from what was measured before
python benchmarks/fix_catalogue.py --measure [NAME]... measures the examples (or some) on this machine's GPU first
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path.insert(0, str(ROOT))
from benchmarks.fix_examples import EXAMPLES, load  # noqa: E402

PAGE, NUMBERS = ROOT / "docs" / "fixes.md", ROOT / "docs" / "fixes.json"
HEAD = """# Rewrites

<!-- Written by `python benchmarks/fix_catalogue.py`; --measure runs the examples on this machine's GPU. -->

`bisect-litert fix RUN` tries these on the culprits of a run and keeps what the GPU proves ([fix.md](fix.md)). Each is
tried for the causes it names, on the module that owns the guilty op and then on those around it, library modules first.
The numbers are those of one small example each (`benchmarks/fix_examples.py`): the local error of the block with the
fault, and the error of the model's output, before and after; torch is the largest difference that the rewrite makes
to torch's own result, and where fp64 decides whether that is right, how far torch's own fp32 result is from fp64
before and after. On the H200 the files that were fixed on llvmpipe were run. Where the fault is a refusal, the
outputs were right before, with those ops on the CPU. Times of models this small are mostly the cost of starting
kernels.
"""


def measure(name: str) -> tuple[str, dict[str, Any]]:
    """Bisects and fixes one example; returns the adapter and what came of it."""
    from bisect_litert.entrances import bisect_loaded
    from bisect_litert.fixing.engine import fix
    from bisect_litert.fixing.finishing import finish
    from bisect_litert.models import preparation
    from bisect_litert.request import BisectRequest

    module, inputs = load(name)
    loaded = preparation.prepare(module, inputs, label=name)
    with tempfile.TemporaryDirectory(prefix="catalogue-") as work:
        request = BisectRequest(model=name, blocks=("blocks.*",), out=Path(work) / "run")
        found = bisect_loaded(loaded, request)
        fixed = fix(loaded, found, request)
        record, _ = finish(fixed, request, Path(work))
    done = [a for c in record.culprits if c.outcome == "fixed" for a in c.attempts if a.rewrite == name]
    first = record.culprits[0] if record.culprits else None
    row: dict[str, Any] = {
        "cause": str(first.cause) if first else str(found.verdict.cause),
        "proven": bool(done) and not record.diverged_after,
        "block": [_json(first.before_error if first else float("nan")), _json(done[-1].block_error) if done else None],
        "output": [_json(record.output_before), _json(record.output_after)],
        "torch": _json(record.torch32),
    }
    if not isnan(record.torch_own):
        row["by_fp64"] = [_json(record.torch_own), _json(record.torch_off)]
    if record.costs is not None:
        costs = record.costs
        row["ops"] = list(costs.ops)
        row["time"] = {
            kind: _json(pair[1] / pair[0]) if pair[0] else None
            for kind, pair in (("cpu", costs.cpu_seconds), ("gpu", costs.gpu_seconds))
        }
    return found.placement.adapter or found.target, row


def _json(value: float) -> float | None:
    return float(f"{value:.2g}") if isfinite(value) else None


def page(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the page's text.

    Args:
        numbers: What was measured, by adapter and rewrite.
    """
    from bisect_litert.rewrites.catalogue import rewrites

    lines = [HEAD, "| rewrite | for | what the user sees |", "| --- | --- | --- |"]
    for rewrite in rewrites():
        causes = ", ".join(f"`{cause}`" for cause in rewrite.causes)
        lines.append(f"| [{rewrite.name}](#{rewrite.name}) | {causes} | {rewrite.symptom} |")
    for rewrite in rewrites():
        lines += ["", f"## {rewrite.name}", "", f"{_sentence(rewrite.title)}", ""]
        lines += [f"- Seen: {_sentence(rewrite.symptom)}", f"- Cause: {_sentence(rewrite.why)}"]
        lines += [f"- Written instead: {_sentence(rewrite.rewrite)}", f"- Limits: {_sentence(rewrite.limits)}"]
        if rewrite.upstream:
            lines.append(f"- Upstream: {rewrite.upstream}")
        rows = [(adapter, some[rewrite.name]) for adapter, some in numbers.items() if rewrite.name in some]
        if rows:
            lines += ["", "| GPU | fault | block | output | torch | ops | CPU time | GPU time |"]
            lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
        lines += [_row(adapter, row) for adapter, row in rows]
    return "\n".join(lines) + "\n"


def _row(adapter: str, row: Mapping[str, Any]) -> str:
    times = row.get("time", {})
    ops = f"{row['ops'][0]} → {row['ops'][1]}" if "ops" in row else ""
    cells = [
        adapter,
        row["cause"] + ("" if row["proven"] else ", not fixed here"),
        _pair(row["block"], row["cause"]) if row["block"] else "",
        _pair(row["output"], row["cause"]),
        _word(row["torch"]) + (f"; fp64 decides, {_pair(row['by_fp64'], '')}" if "by_fp64" in row else ""),
        ops,
        *(f"x{times[kind]:.2f}" if times.get(kind) else "" for kind in ("cpu", "gpu")),
    ]
    return f"| {' | '.join(cells)} |"


def _pair(values: Sequence[float | None], cause: str) -> str:
    before, after = values
    return f"{'no result' if before is None and cause in ('crash', 'hang') else _word(before)} → {_word(after)}"


def _word(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page; the exit code says whether every example that was measured was fixed by its own rewrite."""
    parser = argparse.ArgumentParser(description="Writes docs/fixes.md.")
    parser.add_argument("--measure", nargs="*", metavar="NAME", help="measure these examples first; all without a name")
    args = parser.parse_args(arguments)
    numbers: dict[str, dict[str, Any]] = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    right = True
    if args.measure is not None:
        for name in args.measure or EXAMPLES:
            adapter, row = measure(name)
            numbers.setdefault(adapter, {})[name] = row
            right = right and row["proven"]
            print(name, row, flush=True)
            NUMBERS.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(numbers), encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
