"""Writes the tables of docs/performance.md from what the speed benchmarks measured.

    python benchmarks/performance_tables.py FOLDER [--note TEXT]

FOLDER holds the benchmarks' JSON: overhead.json, rivals.json, growth.json, metrics_rate.json, startup.json. A table
whose file is missing stays as it is. NOTE is put behind the versions, such as what else the machine did.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
Rows = Sequence[Mapping[str, Any]]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def overhead(rows: Rows) -> str:
    """Of overhead.py."""
    parts = ("imports", "convert", "forward", "cpu", "gpu")
    return table(
        ["model", "verdict", "whole s", *(f"{part} s" for part in parts), "GPU runs", "ratio", "aim", "CPU ratio"],
        [
            [r["model"], r["cause"], f"{r['whole']:.1f}", *(f"{r[part]:.2f}" for part in parts),
             f"{r['gpu_runs']:.0f}", f"**{r['ratio']:.2f}**", f"{r['aim']}", f"{r['cpu_ratio']:.2f}"]
            for r in rows
        ],
    )  # fmt: skip


def rivals(rows: Rows) -> str:
    """Of rivals.py."""
    return table(
        ["case", "rival", "probes", "rival s", "named s", "ratio", "without conversion", "all s", "ratio",
         "rival names", "ours names", "`--predict` s"],
        [
            [r["case"], r["how"], str(r["probes"]), f"{r['seconds']:.1f}", f"{r['named']:.1f}",
             f"**{r['ratio_named']:.2f}**", f"{r['ratio_without_conversion']:.2f}", f"{r['ours']:.1f}",
             f"{r['ratio']:.2f}", r["theirs"],
             f"{r['our_block']}, op {r['our_op']}{'' if r['ours_right'] else ' (wrong)'}",
             f"{r['predicted']:.1f}{'' if r['guess'] == r['fault'] else ' (wrong)'}"]
            for r in rows
        ],
    )  # fmt: skip


def growth(rows: Rows) -> str:
    """Of growth.py."""
    return table(
        ["grows", "blocks", "elements a tap", "taps GB", "convert s", "ours s", "parent MB (private)",
         "worker MB (private)", "disk MB"],
        [
            [r["kind"], str(r["blocks"]), f"{r['elements']:.0e}".replace("e+0", "e"),
             f"{4e-9 * r['blocks'] * r['elements']:.2g}", f"{r['convert']:.1f}", f"{r['ours']:.1f}",
             f"{r['parent']:.0f} ({r['parent_private']:.0f})", f"{r['worker']:.0f} ({r['worker_private']:.0f})",
             f"{r['disk']:.0f}" if "disk" in r else ""]
            for r in rows
        ],
    )  # fmt: skip


def metrics_rate(rows: Rows) -> str:
    """Of metrics_rate.py."""
    return table(
        ["elements", "copy ms", "compare ms", "ratio", "by scale ms", "ratio"],
        [
            [f"{r['elements']:.0e}".replace("e+0", "e"), f"{r['ms']['copy']:.3f}", f"{r['ms']['compare']:.2f}",
             f"**{r['ratio']['compare']:.1f}**", f"{r['ms']['by_scale']:.2f}", f"{r['ratio']['by_scale']:.1f}"]
            for r in rows
        ],
    )  # fmt: skip


def startup(rows: Rows) -> str:
    """Of startup.py."""
    return table(
        ["command", "ms", "ratio", "imports of the large packages"],
        [[f"`{r['command']}`", f"{r['ms']:.0f}", f"{r['ratio']:.1f}", ", ".join(r["imports"]) or "none"] for r in rows],
    )


TABLES: dict[str, Callable[[Rows], str]] = {
    "overhead": overhead,
    "rivals": rivals,
    "growth": growth,
    "metrics_rate": metrics_rate,
    "startup": startup,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--note", default="", metavar="TEXT")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    for name, render in TABLES.items():
        path = arguments.folder / f"{name}.json"
        if not path.is_file():
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        known = "; ".join(f"{key} {value}" for key, value in data["about"].items() if value != "")
        note = f" {arguments.note}" if arguments.note else ""
        text = f"{render(data['rows'])}\n\n<sub>{known}.{note}</sub>"
        start = page.index(f"<!-- {name} -->\n")
        page = f"{page[:start]}<!-- {name} -->\n{text}\n{page[page.index('<!-- end -->', start) :]}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
