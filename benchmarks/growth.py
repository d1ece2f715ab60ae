"""How time and memory grow with a model: in blocks, in elements a tap, and in bytes of all taps.

    python benchmarks/growth.py [--only blocks culprit elements taps] [--quick] [--json FILE] [--plot FILE]

Every row is one whole run in a fresh process, without the conversion cache, of a healthy model or, for `culprit`, of
blocks with an overflow behind seven tenths of them: what search, healing, looking inside and proof add. The
converter's own time is taken out, since it grows by itself: `ours` is the whole run less the conversion; `cpu` is the
processor time of the whole run, all processes together. Memory is each process's own peak as the kernel keeps it
(VmHWM), which counts files that are mapped; `private` is the largest size of what cannot be given back to the disk
(RssAnon), looked at twenty times a second. `disk` is the largest size of the temporary folder, with the
files in it that have no name any more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import measuring

STEPS: dict[str, list[tuple[int, int]]] = {
    "blocks": [(16, 8192), (64, 8192), (256, 8192), (1024, 8192)],
    "culprit": [(16, 8192), (64, 8192), (256, 8192), (1024, 8192)],
    "elements": [(4, 10**4), (4, 10**5), (4, 10**6), (4, 10**7), (2, 10**8)],
    "taps": [(25, 10**7), (50, 10**7), (100, 10**7), (200, 10**7)],
}
"""Blocks and elements a tap, by what grows."""
QUICK = {"blocks": 2, "culprit": 2, "elements": 3, "taps": 1}
"""How many of the steps --quick takes."""
UNIT = {"blocks": "blocks", "culprit": "blocks, one faulty", "elements": "elements a tap", "taps": "GB of taps"}


def grown(kind: str, blocks: int, elements: int) -> float:
    """What stands on the axis."""
    return {"blocks": blocks, "culprit": blocks, "elements": elements, "taps": 4e-9 * blocks * elements}[kind]


def row(kind: str, blocks: int, elements: int) -> dict[str, Any]:
    """One run."""
    shape = {"blocks": "mixed", "culprit": "culprit"}.get(kind, "plain")
    model = f"benchmarks/speed_models.py:{shape}_{blocks}_{elements}"
    done, record = measuring.bisect(model, "blocks.*", "--no-cache", "--time-limit", "1800")
    convert = sum(run["seconds"] for run in record["runs"] if run["name"] in ("convert", "reexport"))
    return {
        "kind": kind,
        "blocks": blocks,
        "elements": elements,
        "at": grown(kind, blocks, elements),
        "ops": sum(block["ops"] for block in record["blocks"]),
        "seconds": done.seconds,
        "convert": convert,
        "ours": done.seconds - convert,
        "cpu": done.cpu,
        "parent": done.parent,
        "parent_private": done.parent_private,
        "worker": done.worker,
        "worker_private": done.worker_private,
        "disk": done.disk,
        "cause": record["verdict"]["cause"],
        "adapter": record["placement"]["adapter"],
    }


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Time and memory over what grows, one column each."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(str(row["kind"]) for row in rows))
    figure, axes = pyplot.subplots(3, len(kinds), figsize=(3.6 * len(kinds), 8.0), squeeze=False)
    for column, kind in enumerate(kinds):
        mine = [row for row in rows if row["kind"] == kind]
        x = [row["at"] for row in mine]
        time, memory, disk = axes[0][column], axes[1][column], axes[2][column]
        time.plot(x, [row["ours"] for row in mine], "o-", label="run without conversion")
        time.plot(x, [row["convert"] for row in mine], "s--", label="conversion")
        for key, style, label in (("parent_private", "o-", "parent"), ("worker_private", "s-", "worker"),
                                  ("parent", "o:", "parent, with mapped files"),
                                  ("worker", "s:", "worker, with mapped files")):  # fmt: skip
            memory.plot(x, [row[key] / 1024 for row in mine], style, label=label)
        disk.plot(x, [row["disk"] / 1024 for row in mine], "o-")
        for axis, name in ((time, "seconds"), (memory, "GB of memory"), (disk, "GB of temporary files")):
            axis.set_xscale("log")
            axis.set_xticks(x, [f"{value:g}" if value < 1e4 else f"{value:.0e}".replace("e+0", "e") for value in x])
            axis.minorticks_off()
            if axis is memory:
                axis.set_ylim(bottom=0)
            else:  # what grows in proportion is as steep as this line
                axis.set_yscale("log")
                first = axis.lines[0].get_ydata()[0]
                axis.plot(x, [first * value / x[0] for value in x], color="grey", lw=0.8, ls=":", label="in proportion")
                axis.yaxis.set_major_formatter("{x:g}")
                axis.yaxis.set_minor_formatter("")
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(name)
        disk.set_xlabel(UNIT[kind])
        if column == 0:
            time.legend(fontsize=7)
            memory.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="KIND")
    parser.add_argument("--quick", action="store_true", help="the first steps only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="write a PNG")
    arguments = parser.parse_args()
    about, rows = measuring.about(), []
    measuring.show(about)
    print(f"{'grows':<9} {'blocks':>6} {'elements':>9} {'whole s':>8} {'convert s':>9} {'ours s':>7} {'cpu s':>6} "
          f"{'parent MB':>9} {'private':>8} {'worker MB':>9} {'private':>8} {'disk MB':>8}  verdict")  # fmt: skip
    for kind in arguments.only:
        for blocks, elements in STEPS[kind][: QUICK[kind] if arguments.quick else None]:
            one = row(kind, blocks, elements)
            rows.append(one)
            print(f"{kind:<9} {blocks:>6} {elements:>9} {one['seconds']:>8.1f} {one['convert']:>9.1f} "
                  f"{one['ours']:>7.1f} {one['cpu']:>6.1f} {one['parent']:>9.0f} {one['parent_private']:>8.0f} "
                  f"{one['worker']:>9.0f} {one['worker_private']:>8.0f} {one['disk']:>8.0f}  "
                  f"{one['cause']}", flush=True)  # fmt: skip
            about["adapter"] = one["adapter"]
            measuring.save(arguments.json, about, rows)  # after every row: the last ones take long
    if arguments.plot:
        draw(rows, arguments.plot)


if __name__ == "__main__":
    main()
