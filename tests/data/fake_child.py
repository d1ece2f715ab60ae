"""Stands in for the process that runs a model's cells. What it does is the model's name: a word per cell, "ok.crash".

ok, diff, refused    an answer
load, convert        an answer that fails there
crash@STAGE          it dies in that stage
hang@STAGE           it never answers
stubborn             it never answers, and ignores to be interrupted
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def answer(place: Path, model: str, target: str, **fields: object) -> None:
    cell = {"model": model, "target": target, **fields}
    (place / "answer.partial").write_text(json.dumps({"cell": cell, "sources": {}}))
    os.replace(place / "answer.partial", place / "answer.json")


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # like the real one: ignored in what a shell starts behind
    errand = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[1]).unlink()
    name = errand["model"]["name"]
    with Path("started.txt").open("a") as file:
        file.write(f"{name} {' '.join(t['name'] for t in errand['targets'])}\n")
    words = errand["model"]["model"].split()
    for target, place in zip(errand["targets"], map(Path, errand["places"]), strict=True):
        known = {"cpu": 0, "emulated": 1, "gpu": 2, "gpu-fp32": 3}[target["name"]]
        word, _, stage = words[min(known, len(words) - 1)].partition("@")
        (place / "stage").write_text(stage.replace("_", " "))
        (place / "cell.log").write_text(f"{word} on {target['name']}\n")
        (place / "run").mkdir()
        if word == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if word == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if word in ("hang", "stubborn"):
            time.sleep(600)
        codes = {"ok": "OK", "diff": "DIFF", "refused": "REJECT", "load": "L-FAIL", "convert": "C-FAIL"}
        fields = {"code": codes[word], "summary": f"{word} it is", "device": "a GPU", "runtime": "9.9", "seconds": 1.0}
        fields["exit_code"] = {"ok": 0, "diff": 1}.get(word, 125)
        fields["relative_l2"] = {"ok": 1e-4, "diff": 0.2}.get(word, "NaN")
        answer(place, name, target["name"], **fields)
        if word in ("load", "convert"):
            return


if __name__ == "__main__":
    main()
