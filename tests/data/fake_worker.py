"""A worker that misbehaves on demand: each job's id says how. Speaks the protocol of bisect_litert/worker.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def answer(folder: Path, array: np.ndarray | None = None, **changes: object) -> None:
    array = np.full(3, float(os.getpid()), np.float64) if array is None else array
    np.save(folder / "out_000.npy", array)
    entry = {"file": f"{folder.name}/out_000.npy", "shape": list(array.shape), "dtype": "float64", "unwritten": 1}
    text = {"status": "ok", "error": "", "outputs": {"y": entry}, "tensors": {}, "seconds": {"compile": 1, "run": 2},
            "fell_back": False, "log": "", **changes}  # fmt: skip
    (folder / "partial").write_text(json.dumps(text))
    (folder / "partial").replace(folder / "response.json")  # there whole or not at all, as the real one does it


def run(name: str, folder: Path) -> None:
    behaviour = name.split("-")[0]
    (folder / "stderr.log").write_text(f"log of {name}\n")
    entry = {"file": f"{folder.name}/out_000.npy", "shape": [3], "dtype": "float64", "unwritten": 0}
    if behaviour == "dies_early":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "started").touch()
    if behaviour == "ok":
        answer(folder)
    elif behaviour == "slow":
        time.sleep(0.6)
        answer(folder)
    elif behaviour == "big":
        answer(folder, np.random.default_rng(0).random(1 << 20))  # 8 MiB that no compression makes smaller
    elif behaviour == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif behaviour == "abort":
        os.kill(os.getpid(), signal.SIGABRT)
    elif behaviour == "exit":
        sys.exit(3)
    elif behaviour == "full":
        sys.exit(74)
    elif behaviour == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        (folder / "grandchild").write_text(str(child.pid))
        time.sleep(300)
    elif behaviour == "silent":
        pass
    elif behaviour == "not_json":
        (folder / "response.json").write_text('{"status": "ok", "outp')
    elif behaviour == "no_keys":
        (folder / "response.json").write_text("[]")
    elif behaviour == "no_file":
        answer(folder, outputs={"y": {**entry, "file": "nowhere.npy"}})
    elif behaviour == "outside":
        answer(folder, outputs={"y": {**entry, "file": "../../request.json"}})
    elif behaviour == "wrong_shape":
        answer(folder, outputs={"y": {**entry, "shape": [2]}})
    elif behaviour == "pickle":
        answer(folder)
        np.save(folder / "out_000.npy", np.array([{}]), allow_pickle=True)
    elif behaviour == "failed":
        answer(
            folder, status="failed", error="RuntimeError: ERROR: [./a.h:19]\n└ Some ops are not accelerated. Add CPU."
        )


def main() -> None:
    if "--broken" in sys.argv:
        sys.exit("ModuleNotFoundError: No module named 'ai_edge_litert'")
    if "--mute" in sys.argv:
        time.sleep(300)
    for line in sys.stdin:
        request, response = map(Path, line.rstrip("\n").split("\t"))
        names = [job["id"] for job in json.loads((request / "request.json").read_text())["jobs"]]
        for name in names:
            folder = response / name
            folder.mkdir(parents=True, exist_ok=True)
            run(name, folder)
        if names[-1].endswith("last_words"):
            sys.exit(139)
        print("done", flush=True)
        if names[-1].endswith("dies_idle"):
            sys.exit(1)


main()
