"""TITLE

Builds the culprit in PyTorch, converts it with litert-torch, and runs it on the GPU in default precision and in fp32,
and on the CPU, against PyTorch. Needs torch, litert-torch, and repro.py beside it.

    python repro_torch.py [--json FILE] [-v]

Exit codes: 1 it is wrong, 0 it is right, 125 it cannot be tested here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    import litert_torch
    import numpy as np
    import torch
    from torch import nn
except ImportError as error:
    print(f"CANNOT BE TESTED here: {error} (pip install torch litert-torch)")
    sys.exit(125)

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # a compiled repro.py would carry this machine's paths
sys.path.insert(0, str(HERE))  # `python -I` leaves it out

from bisect_litert.bundles.repro_script import CANNOT_TEST, UNTESTED, examine, exit_code, quiet, show  # noqa: E402

aten = torch.ops.aten
ABOUT: dict[str, Any] = {"cause": "", "tolerance": 0.0, "reference": "cpu"}
INPUTS: list[str] = []
WEIGHTS = ""


class Culprit(nn.Module):
    """The module that stands here in a bundle."""


def main() -> int:
    """Converts, runs, compares; returns the exit code."""
    parser = argparse.ArgumentParser(description="Converts the culprit and runs it; 1: wrong, 0: right, 125: no GPU.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the converter and LiteRT print")
    options = parser.parse_args()
    weights = dict(np.load(HERE / WEIGHTS, allow_pickle=False)) if WEIGHTS else {}
    inputs = [np.load(HERE / name, allow_pickle=False) for name in INPUTS]
    module = Culprit(weights).eval()
    with torch.no_grad():
        right = module(*(torch.from_numpy(value.copy()) for value in inputs))
    right = right if isinstance(right, tuple) else (right,)
    expected = {f"output_{i}": value.numpy() for i, value in enumerate(right)}
    print(f"torch {torch.__version__}, litert-torch {metadata.version('litert-torch')}")
    about = dict(ABOUT)
    runs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        model = Path(scratch) / "model.tflite"
        try:
            with quiet(log, options.verbose):
                examples = tuple(torch.from_numpy(value.copy()) for value in inputs)
                litert_torch.convert(module, examples).export(str(model))
        except Exception as failure:
            said = f"litert-torch cannot convert it: {type(failure).__name__}: {' '.join(str(failure).split())[:300]}"
            answer: dict[str, Any] = {"result": UNTESTED, "why": said, "outputs": {}, "died": {}, "reported": ""}
        else:
            named = {f"args_{i}": value for i, value in enumerate(inputs)}
            runs, answer = examine(about, model, named, expected, options.verbose)
            if answer.get("refused") and about.get("accelerator", "gpu") == "gpu":
                about["accelerator"] = "gpu+cpu"  # the GPU alone refuses some of it
                runs, answer = examine(about, model, named, expected, options.verbose)
            print(f"ai-edge-litert {answer['version']}, adapter: {answer['adapter'] or 'none'}")
    show(about, expected, runs, answer)
    if options.json:
        options.json.write_text(json.dumps(answer, indent=1), encoding="utf-8")
    return exit_code(answer)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # an exit code of 1 would say that it reproduces
        traceback.print_exc()
        code = CANNOT_TEST
    sys.stdout.flush()
    if "-v" not in sys.argv and "--verbose" not in sys.argv:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the C++ side prints when it is torn down
    os._exit(code)  # the converter's and the runtime's libraries need not agree on how to be torn down
