"""Memory of a run and of a bundle on a large model with a fault in one small block (README.md).

    python benchmarks/large_model.py OUT [--megabytes N]

Writes a model of N megabytes of weights, most of them in plain linear layers, and a LayerNorm written out between them
that leaves fp16's range. Then, each in a process of its own: PyTorch's forward alone, the conversion alone, a run, a
bundle. Printed is the largest resident size of each process, and of everything it started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MODEL = """
import torch
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        x = x * 3e4
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, {fold} * width)
    def forward(self, x):
        return x + torch.tanh(self.fc(x)).reshape(1, 4, {fold}, -1).mean(2)

torch.manual_seed(0)
blocks = [Wide({width}) for _ in range({count})]
blocks.insert({count} // 2, Norm())
model = nn.Sequential(*blocks).eval()
inputs = (torch.randn(1, 4, {width}),)
"""
FORWARD = "import model, torch; torch.no_grad().__enter__(); model.model(*model.inputs)"
CONVERT = "import model, litert_torch; litert_torch.convert(model.model, model.inputs).export('converted.tflite')"
WIDTH, FOLD = 512, 64
"""Long sums would lose digits in fp16, which is another fault."""
EVERY = 0.05
"""Seconds between two looks at the processes."""


def watch(command: Sequence[str], folder: Path) -> tuple[float, float, float, int]:
    """Runs a command.

    Returns:
        The largest resident size of its own process and of the whole tree at one time, in MB; seconds; exit code.
    """
    started = time.monotonic()
    log = (folder / "log.txt").open("a")
    child = subprocess.Popen(
        command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": _path(folder)}
    )
    own = tree = 0.0
    while child.poll() is None:
        sizes = _resident(child.pid)
        own, tree = max(own, sizes.get(child.pid, 0.0)), max(tree, sum(sizes.values()))
        time.sleep(EVERY)
    log.close()
    return own, tree, time.monotonic() - started, child.returncode


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[1])])


def _resident(root: int) -> dict[int, float]:
    """Resident MB of a process and all that it started; pages that several share count once, in parts."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found, todo = {}, [root]
    while todo:
        pid = todo.pop()
        todo += [child for child, parent in parents.items() if parent == pid]
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found[pid] = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Memory of a run and of a bundle on a large model.")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--megabytes", type=int, default=512, metavar="N")
    args = parser.parse_args(arguments)
    folder = args.out.resolve()
    folder.mkdir(parents=True)
    count = max(2, args.megabytes * (1 << 20) // (4 * FOLD * WIDTH * WIDTH))
    (folder / "model.py").write_text(MODEL.format(width=WIDTH, count=count, fold=FOLD))
    weights = count * FOLD * 4 * WIDTH * (WIDTH + 1) / (1 << 20)
    print(f"{weights:.0f} MB of weights")
    ours = [sys.executable, "-m", "bisect_litert"]
    for name, command in (
        ("torch's forward alone", [sys.executable, "-c", FORWARD]),
        ("conversion alone", [sys.executable, "-c", CONVERT]),
        ("run", [*ours, "model.py", "--out", "run", "-q", "--no-cache"]),
        ("bundle", [*ours, "bundle", "run", "--out", "report", "-q"]),
        ("bundle --no-twin", [*ours, "bundle", "run", "--out", "report-2", "-q", "--no-twin"]),
    ):
        own, tree, seconds, code = watch(command, folder)
        print(
            f"{name}: {own:.0f} MB own process, {tree:.0f} MB with its children, {seconds:.0f} s, exit {code}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
