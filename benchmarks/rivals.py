"""Time to a correct name against what people do now: same model, same machine, fresh processes, taken in turns.

    python benchmarks/rivals.py [--only NAME ...] [--repeat N] [--json FILE]

`blocks`: a 12-block transformer with an overflow in one block. The rival exports each prefix of the blocks with a
wrapper module, converts it, runs it on the GPU and holds it against PyTorch. From the same twelve probes come three
times: all twelve (what a script does), in order until one is wrong, and by halving.

`ops-50` to `ops-1000`: the same transformer in other depths. The rival is prefix bisection over ops: the model is
converted once, then the graph is cut behind op N, compiled for the GPU, and its end held against the CPU's value, by
halving, one compile a probe.

`guard`: litert-precision-guard on the same .tflite file, if it is installed (`pip install litert-precision-guard`). It
names nothing, so its time is no time to a name. litert_gpu_toolkit's checker is in no package index; it is left out.

Rivals run in our own worker with one LiteRT environment for all probes, which saves them a start a probe, and their
probes need neither taps nor controls. Of us two times are printed: until the first wrong block is named on the screen,
which is as much as a rival says in the end, and the whole command with all of its controls, down to op, cause and
proof. Beside them stands `--predict`, which names faults of fp16's range only, from PyTorch alone. Both sides'
conversions are counted, and the first ratio is given without them as well: a rival that is handed a .tflite needs none,
and neither do we then. Every process runs twice, and the first run, which fills the shader cache, is not counted.
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
from math import isnan, nan
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import measuring

DEPTHS = {50: 1, 200: 4, 500: 10, 1000: 20}
"""Blocks for about so many ops; a block has 51."""
WRONG = 1e-2
"""Relative L2 error from which a rival calls a probe wrong: our own limit for an output."""


def fault_of(depth: int) -> int:
    """The block with the fault: behind the middle, where neither searching in order nor halving is lucky."""
    return depth * 6 // 10


def model_spec(depth: int) -> str:
    """How the command line names the model."""
    return f"benchmarks/speed_models.py:transformer_of_{depth}"


def _wrong(reference: Any, target: Any) -> bool:
    from bisect_litert.measuring.metrics import compare

    found = compare(reference=reference, target=target)
    return not found.finite_agreement or isnan(found.relative_l2) or found.relative_l2 > WRONG


def reexport(depth: int) -> dict[str, Any]:
    """The first rival, in this process: a conversion per block."""
    start = time.perf_counter()
    import litert_torch
    import torch

    from benchmarks.speed_models import transformer
    from bisect_litert.devices.jobs import Job
    from bisect_litert.devices.runners import Runner

    class Prefix(torch.nn.Module):
        def __init__(self, whole: Any, count: int) -> None:
            super().__init__()
            self.stem, self.blocks = whole.stem, whole.blocks[:count]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return x

    model, inputs = transformer(depth, fault=fault_of(depth))
    probes: dict[int, tuple[bool, float]] = {}
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        runner.warm_up()
        setup = time.perf_counter() - start
        for count in range(1, depth + 1):
            start = time.perf_counter()
            prefix, path = Prefix(model, count).eval(), Path(folder) / f"prefix-{count}.tflite"
            with torch.no_grad():
                right = prefix(**inputs).numpy()
            litert_torch.convert(prefix, (), inputs).export(str(path))
            given = {"x": inputs["x"].numpy()}
            result = runner.run([Job(f"prefix-{count}", path, "gpu", given)])[f"prefix-{count}"]
            wrong = not result.ok or _wrong(right, next(iter(result.outputs.values())))
            probes[count - 1] = wrong, time.perf_counter() - start
    first = next((block for block, (wrong, _) in probes.items() if wrong), -1)
    low, high, visited = -1, depth - 1, [depth - 1]  # the whole model is looked at first
    while high - low > 1:
        middle = (low + high) // 2
        visited.append(middle)
        low, high = (low, middle) if probes[middle][0] else (middle, high)
    seconds = {
        "all": setup + sum(taken for _, taken in probes.values()),
        "in order": setup + sum(taken for block, (_, taken) in probes.items() if block <= max(first, 0)),
        "halving": setup + sum(probes[block][1] for block in visited),
    }
    return {"seconds": seconds, "probes": {"all": depth, "in order": first + 1, "halving": len(visited)},
            "name": f"blocks.{first}", "convert": 0.0}  # fmt: skip


def prefixes(depth: int) -> dict[str, Any]:
    """The second rival, in this process: a compile per probe."""
    start = time.perf_counter()
    import litert_torch

    from benchmarks.speed_models import transformer
    from bisect_litert.devices.jobs import Job
    from bisect_litert.devices.runners import Runner
    from bisect_litert.graphs.cutting import compact, cut
    from bisect_litert.graphs.graph import Graph

    model, inputs = transformer(depth, fault=fault_of(depth))
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        runner.warm_up()
        path = Path(folder) / "model.tflite"
        began = time.perf_counter()
        litert_torch.convert(model, (), inputs).export(str(path))
        convert = time.perf_counter() - began
        graph = Graph.read(path)
        given = {port.name: inputs["x"].numpy() for port in graph.inputs}
        values = runner.run([Job("values", path, "interpreter", given, tensors="all")])["values"].tensors
        ops = [op for op in graph.ops if graph.tensors[op.outputs[0]].is_float]
        probes = 0

        def wrong(at: int) -> bool:
            nonlocal probes
            probes += 1
            end = ops[at].outputs[0]
            source = graph.inputs[0].tensor
            made = cut(graph, [op for op in graph.ops if op.index <= ops[at].index], [source], [end])
            part = compact(made.graph).write(Path(folder) / f"probe-{probes}.tflite")
            fed = {name: next(iter(given.values())) for name in made.inputs}
            name = f"probe-{probes}"
            result = runner.run([Job(name, part, "gpu", fed)])[name]
            return not result.ok or _wrong(values[end], next(iter(result.outputs.values())))

        low, high = -1, len(ops) - 1
        found = wrong(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if wrong(middle) else (middle, high)
    op = ops[high] if found else None
    return {"seconds": {"halving": time.perf_counter() - start}, "probes": {"halving": probes}, "convert": convert,
            "op": op.index if op else -1, "name": f"{op.type} (op {op.index})" if op else ""}  # fmt: skip


def guard(depth: int) -> dict[str, Any]:
    """litert-precision-guard's own command on the converted file; its inputs are its own."""
    import litert_torch

    from benchmarks.speed_models import transformer

    model, inputs = transformer(depth, fault=fault_of(depth))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        litert_torch.convert(model, (), inputs).export(str(path))
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "litert_precision_guard", str(path)], capture_output=True)
        seconds = time.perf_counter() - start
    return {"seconds": {"one file": seconds}, "probes": {"one file": 3}, "convert": 0.0,
            "name": "nothing; " + ("flagged" if done.returncode == 1 else "not flagged")}  # fmt: skip


RIVALS = {"blocks": reexport, "ops": prefixes, "guard": guard}


def rival(kind: str, depth: int) -> dict[str, Any]:
    """Runs a rival in a fresh process; its time holds the interpreter's start and all imports."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--rival", kind, str(depth)],
        capture_output=True,
        text=True,
        cwd=measuring.ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(measuring.ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    taken: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    outside = time.perf_counter() - start - max(taken["seconds"].values())
    if kind != "guard":  # starting Python, and the imports that came before the clock
        taken["seconds"] = {how: seconds + outside for how, seconds in taken["seconds"].items()}
    return taken


def ours(depth: int) -> dict[str, Any]:
    """Runs our command, with a conversion of its own."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as answer:
        words = [model_spec(depth), "--blocks", "blocks.*", "--no-cache", "-v", "--json", "--out", f"{folder}/run"]
        start, named, name = time.perf_counter(), nan, ""
        child = subprocess.Popen(
            [*measuring.OURS, *words], stdout=answer, stderr=subprocess.PIPE, text=True, cwd=measuring.ROOT
        )
        for line in child.stderr or ():
            if "First look:" in line:
                named, name = time.perf_counter() - start, line.partition(" is the first")[0].split()[-1]
        child.wait()
        seconds = time.perf_counter() - start
        answer.seek(0)
        record = json.load(answer)
    foretold, guess = measuring.bisect(model_spec(depth), "blocks.*", "--predict")
    lead = record["culprits"][0] if record["culprits"] else {"block": "", "op": -1}
    convert = sum(run["seconds"] for run in record["runs"] if run["name"] == "convert")
    return {"seconds": seconds, "named": named, "name": name, "block": lead["block"], "op": lead["op"],
            "predicted": foretold.seconds, "guess": guess["culprits"][0]["block"] if guess["culprits"] else "",
            "convert": convert, "ops": sum(b["ops"] for b in record["blocks"]),
            "adapter": record["placement"]["adapter"]}  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = {"blocks": ("blocks", 12), **{f"ops-{ops}": ("ops", depth) for ops, depth in DEPTHS.items()},
             "guard": ("guard", 12)}  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=list(cases), default=list(cases), metavar="NAME")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rival", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rival:
        print(json.dumps(RIVALS[arguments.rival[0]](int(arguments.rival[1]))))
        return
    about, rows = measuring.about(), []
    measuring.show(about)
    print(
        f"{'case':<9} {'rival':<10} {'probes':>6} {'s':>7} {'named s':>7} {'ratio':>6} {'whole s':>7} "
        f"{'ratio':>6} {'no convert':>10}  names"
    )
    for case in arguments.only:
        kind, depth = cases[case]
        if (
            kind == "guard"
            and subprocess.run([sys.executable, "-c", "import litert_precision_guard"], capture_output=True).returncode
        ):
            print(f"{case:<9} litert-precision-guard is not installed here")
            continue
        samples = []
        for turn in range(arguments.repeat + 1):
            pair = rival(kind, depth), ours(depth)
            if turn:
                samples.append(pair)
        for how in samples[0][0]["seconds"]:
            theirs = statistics.median(r["seconds"][how] for r, _ in samples)
            mine = statistics.median(o["seconds"] for _, o in samples)
            ratio = statistics.median(r["seconds"][how] / o["seconds"] for r, o in samples)
            first = statistics.median(o["named"] for _, o in samples)
            ratio_named = statistics.median(r["seconds"][how] / o["named"] for r, o in samples)
            bare = statistics.median(
                (r["seconds"][how] - r["convert"]) / (o["named"] - o["convert"]) for r, o in samples
            )
            them, us = samples[-1]
            right = {us["block"], us["name"]} == {f"blocks.{fault_of(depth)}"}
            about["adapter"] = us["adapter"]
            predicted = statistics.median(o["predicted"] for _, o in samples)
            rows.append({"case": case, "how": how, "probes": them["probes"][how], "seconds": theirs, "named": first,
                         "ratio_named": ratio_named, "ratio_without_conversion": bare, "ours": mine, "ratio": ratio,
                         "fault": f"blocks.{fault_of(depth)}", "theirs": them["name"], "our_block": us["block"],
                         "our_op": us["op"], "ours_right": right, "predicted": predicted, "guess": us["guess"],
                         "ops": us["ops"]})  # fmt: skip
            shown = f"{bare:>10.2f}" if them["convert"] else f"{'':>10}"
            print(
                f"{case:<9} {how:<10} {them['probes'][how]:>6} {theirs:>7.1f} {first:>7.1f} {ratio_named:>6.2f} "
                f"{mine:>7.1f} {ratio:>6.2f} {shown}  "
                f"{them['name']}; ours {us['block']} op {us['op']} of {us['ops']}, {'right' if right else 'WRONG'}; "
                f"--predict {us['guess']} in {predicted:.1f} s",
                flush=True,
            )
    measuring.save(arguments.json, about, rows)


if __name__ == "__main__":
    main()
