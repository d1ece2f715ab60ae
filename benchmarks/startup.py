"""How long a command takes before it does anything, against `python -c pass`, interleaved in fresh processes.

    python benchmarks/startup.py [RUN] [--repeat N] [--json FILE]

RUN is a run folder to report and view; without one, a sample record is written. `view` is opened without a terminal and
closed again once its first screen is there. Beside the ratio stands which large packages each command imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import measuring

LARGE = ("torch", "litert_torch", "ai_edge_litert", "jax", "transformers", "matplotlib", "numpy", "textual", "rich",
         "PIL", "cattrs")  # fmt: skip
COMMAND = """
import json, sys
if len(sys.argv) > 1 and sys.argv[1] == "view":
    import asyncio
    from pathlib import Path
    from bisect_litert import cli
    from bisect_litert.tui.app import BisectApp
    from bisect_litert.record import RunRecord
    async def look():
        async with BisectApp(RunRecord.load(Path(sys.argv[2])), Path(sys.argv[2])).run_test() as pilot:
            await pilot.pause()
    asyncio.run(look())
else:
    from bisect_litert.cli import main
    main(sys.argv[1:])
"""
LISTED = COMMAND + "\nprint(json.dumps([n for n in {large!r} if n in sys.modules]), file=sys.stderr)"


def run(code: str, *words: str) -> tuple[float, str]:
    """Returns seconds and what it said on stderr."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(measuring.ROOT)},
    )
    return time.perf_counter() - start, done.stderr


def sample(folder: Path) -> Path:
    """Writes a record as a run leaves it."""
    sys.path.insert(0, str(measuring.ROOT / "tests"))
    import sample_record

    sample_record.overflow().save(folder)
    return folder


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about = measuring.about()
    measuring.show(about)
    with tempfile.TemporaryDirectory() as folder:
        place = str(arguments.run or sample(Path(folder)))
        commands = {
            "python -c pass": None,
            "--help": ["--help"],
            "blocks --help": ["blocks", "--help"],
            "report": ["report", place],
            "view": ["view", place],
        }
        samples: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.repeat + 1):
            for name, words in commands.items():
                samples[name].append(run("pass" if words is None else COMMAND, *(words or ()))[0])
        rows = []
        print(f"{'command':<16} {'ms':>6} {'ratio':>6}  imports")
        for name, words in commands.items():
            taken = samples[name][1:]  # the first one reads files that the others find in memory
            ratio = statistics.median(s / p for s, p in zip(taken, samples["python -c pass"][1:], strict=True))
            loaded = [] if words is None else json.loads(run(LISTED.format(large=LARGE), *words)[1].splitlines()[-1])
            ms = 1e3 * statistics.median(taken)
            rows.append({"command": name, "ms": ms, "ratio": ratio, "imports": loaded})
            print(f"{name:<16} {ms:>6.0f} {ratio:>6.1f}  {', '.join(loaded) or 'none of the large ones'}", flush=True)
    measuring.save(arguments.json, about, rows)


if __name__ == "__main__":
    main()
