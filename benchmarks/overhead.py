"""What a whole run costs over what it cannot do without, side by side and interleaved.

    python benchmarks/overhead.py [MODEL[:GLOB] ...] [--repeat N] [--stages] [--json FILE]

MODEL is a name from speed_models.py (all five by default) or a model file. The ratio is the whole command's wall time,
without the conversion cache, over the sum of its unavoidable parts, each measured alone in a fresh process in the same
round:

- imports: torch and litert-torch, and loading the model file with what that imports;
- one `litert_torch.convert` of the untapped model, one eager forward, one run on LiteRT's CPU;
- the GPU compiles and runs that the verdict needs: all that the run made but the second look at whether the GPU repeats
  itself. They are run again from the request folders of the warming-up run, in a worker with nothing beside it.

The last column is the same of processor time, all processes together: a busy machine disturbs it less, and what
overlaps does not hide in it.

The first run fills the shader cache and is not counted. `--stages` also prints where the last run's time went.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import measuring

MODELS = ("bert_mini", "vit_tiny", "resnet_18", "transformer_24", "ops_1000")
AIMS = {False: 1.15, True: 1.4}
"""By whether there is a culprit."""

KEEPING = """
import shutil, sys
shutil.rmtree = lambda *words, **options: None  # the requests are to be run again
from bisect_litert.cli import main
sys.exit(main(sys.argv[1:]))
"""
PARTS = """
import json, os, sys, time
import numpy as np
from pathlib import Path
start = time.perf_counter()
import torch, litert_torch
from bisect_litert.models import model_file
loaded = model_file.load(sys.argv[1])
took = {"imports": time.perf_counter() - start}
from bisect_litert.graphs.conversion import convert, input_names
from bisect_litert.devices.jobs import Job
from bisect_litert.devices.runners import Runner
folder = Path(sys.argv[2])
with Runner(folder / "parts") as runner:
    runner.warm_up()
    start = time.perf_counter()
    with torch.no_grad():
        loaded.module(*loaded.args, **loaded.kwargs)
    took["forward"] = time.perf_counter() - start
    start = time.perf_counter()
    graph = convert(loaded.module, loaded.args, loaded.kwargs, folder / "m.tflite", folder / "m.log")
    took["convert"] = time.perf_counter() - start
    given = input_names(graph, loaded.args, loaded.kwargs)
    took["cpu"] = runner.run([Job("cpu", folder / "m.tflite", "cpu", given)])["cpu"].seconds
    took["gpu"], took["gpu_runs"] = 0.0, 0
    for request in sorted(Path(sys.argv[3]).glob("*/*requests/*/request.json")):
        for job in json.loads(request.read_text())["jobs"]:
            if not job["accelerator"].startswith("gpu") or job["id"].endswith("-again"):
                continue
            inputs = {name: np.load(request.parent / path) for name, path in job["inputs"].items()}
            again = Job(job["id"], request.parent / job["model"], job["accelerator"], inputs, job["fp32"], job["env"],
                        job["fallback"])
            result = runner.run([again])[job["id"]]
            if result.ok:
                took["gpu"] += result.seconds
                took["gpu_runs"] += 1
print(json.dumps(took), flush=True)
os._exit(0)  # taking torch apart again is no part
"""


def parts(model: str, requests: Path) -> dict[str, float]:
    """Times the unavoidable parts in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        done = measuring.watch([sys.executable, "-c", PARTS, model, folder, str(requests)])
    if done.code:
        raise SystemExit(f"the parts of {model} could not be timed: {done.code}")
    return {**json.loads(done.output.splitlines()[-1]), "parts_cpu": done.cpu}


def warmed(model: str, blocks: str, requests: Path) -> None:
    """Fills the shader cache, and keeps what the run sent to the worker."""
    command = [sys.executable, "-c", KEEPING, model, "--blocks", blocks, "-q", "--json", "--out", str(requests / "run")]
    done = measuring.watch(command, {"TMPDIR": str(requests)})
    if done.code not in (0, 1):
        raise SystemExit(f"the run of {model} ended with {done.code}")


def stages(model: str, blocks: str) -> str:
    """Where the time of a run goes, as it says itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*measuring.OURS, model, "--blocks", blocks, "-v", "--no-cache", "--out", f"{folder}/run"]
        return subprocess.run(command, capture_output=True, text=True, cwd=measuring.ROOT).stderr


def spec(name: str) -> tuple[str, str]:
    """A model as the command line names it, and its blocks."""
    from benchmarks import speed_models

    path, _, blocks = name.partition(":")
    if path in speed_models.BLOCKS:
        return f"benchmarks/speed_models.py:{path}", blocks or speed_models.BLOCKS[path]
    return str(Path(path).resolve()), blocks or "*"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help="names, or model files with :GLOB for the blocks")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    about, rows = measuring.about(), []
    measuring.show(about)
    names = ("imports", "convert", "forward", "cpu", "gpu")
    print(f"{'model':<16} {'verdict':<12} {'whole s':>8} " + " ".join(f"{name:>8}" for name in names)
          + f" {'runs':>5} {'ratio':>6} {'aim':>5} {'CPU ratio':>9}")  # fmt: skip
    for name in arguments.models:
        model, blocks = spec(name)
        with tempfile.TemporaryDirectory() as folder:
            requests = Path(folder)
            warmed(model, blocks, requests)
            samples = []
            for _ in range(arguments.repeat):
                needed = parts(model, requests)
                done, record = measuring.bisect(model, blocks, "--no-cache")
                needed["whole"] = done.seconds
                needed["whole_cpu"] = done.cpu
                needed["cpu_ratio"] = done.cpu / needed["parts_cpu"]
                needed["ratio"] = done.seconds / sum(needed[part] for part in names)
                samples.append(needed)
        middle = {key: statistics.median(sample[key] for sample in samples) for key in samples[0]}
        aim, cause = AIMS[bool(record["culprits"])], record["verdict"]["cause"]
        about["adapter"] = record["placement"]["adapter"]
        row: dict[str, Any] = {"model": name, "cause": cause, "aim": aim, "samples": samples, **middle}
        numbers = " ".join(f"{middle[part]:>8.2f}" for part in names)
        print(
            f"{Path(name).name:<16} {cause:<12} {middle['whole']:>8.2f} {numbers} {middle['gpu_runs']:>5.0f} "
            f"{middle['ratio']:>6.2f} {aim:>5} {middle['cpu_ratio']:>9.2f}",
            flush=True,
        )
        if arguments.stages:
            row["stages"] = stages(model, blocks)
            print(row["stages"], flush=True)
        rows.append(row)
        measuring.save(arguments.json, about, rows)


if __name__ == "__main__":
    main()
