"""What a whole run costs over what it cannot do without, side by side and interleaved.

    python benchmarks/overhead.py [MODEL[:GLOB] ...] [--repeat N] [--json FILE]

The unavoidable parts are measured in a fresh process: importing torch and litert-torch, one conversion of the
untapped model, one eager forward. The GPU runs are those that the run itself made, as its record says (compile, run
and read, warm shader cache). The ratio is the whole command's wall time over their sum.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = (
    "examples/healthy.py:*",
    "examples/layernorm_overflow.py:blocks.*",
    "examples/constant_mask_attention.py:layers.*",
)

PARTS = """
import json, sys, time
start = time.perf_counter()
import torch, litert_torch
imports = time.perf_counter() - start
from pathlib import Path
from bisect_litert import model_file
from bisect_litert.conversion import convert
loaded = model_file.load(sys.argv[1])
start = time.perf_counter()
with torch.no_grad():
    loaded.module(*loaded.args, **loaded.kwargs)
forward = time.perf_counter() - start
start = time.perf_counter()
folder = Path(sys.argv[2])
convert(loaded.module, loaded.args, loaded.kwargs, folder / "m.tflite", folder / "m.log")
print(json.dumps({"imports": imports, "forward": forward, "convert": time.perf_counter() - start}))
"""


def parts(model: Path) -> dict[str, float]:
    """Times imports, one forward and one conversion in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", PARTS, str(model), folder], capture_output=True, text=True, check=True, cwd=ROOT
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def whole(model: Path, blocks: str) -> tuple[float, float, dict[str, Any]]:
    """Times the command; returns wall seconds, the GPU runs' seconds, and the record."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bisect_litert", str(model), "--blocks", blocks, "-q", "--json"]
        start = time.perf_counter()
        done = subprocess.run([*command, "--out", f"{folder}/run"], capture_output=True, text=True, cwd=ROOT)
        seconds = time.perf_counter() - start
    record = json.loads(done.stdout)
    gpu = sum(r["seconds"] for r in record["runs"] if r["name"].startswith("gpu") and r["status"] == "ok")
    return seconds, gpu, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=EXAMPLES, help="model files, with :GLOB for the blocks")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(
        f"{'model':<28} {'verdict':<14} {'whole s':>8} {'imports':>8} {'convert':>8} {'gpu':>6} {'runs':>5}"
        f" {'ratio':>6}"
    )
    for spec in arguments.models:
        path, _, blocks = spec.partition(":")
        model = (ROOT / path).resolve()
        whole(model, blocks or "*")  # warms the shader cache
        samples = []
        for _ in range(arguments.repeat):
            needed = parts(model)
            seconds, gpu, record = whole(model, blocks or "*")
            samples.append({**needed, "gpu": gpu, "whole": seconds, "ratio": seconds / (sum(needed.values()) + gpu)})
        middle = {key: statistics.median(s[key] for s in samples) for key in samples[0]}
        runs = sum(r["name"].startswith("gpu") and r["status"] == "ok" for r in record["runs"])
        rows.append(
            {"model": model.name, "cause": record["verdict"]["cause"], "gpu_runs": runs, "samples": samples, **middle}
        )
        print(
            f"{model.name:<28} {record['verdict']['cause']:<14} {middle['whole']:>8.2f} {middle['imports']:>8.2f} "
            f"{middle['convert']:>8.2f} {middle['gpu']:>6.2f} {runs:>5} {middle['ratio']:>6.2f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
