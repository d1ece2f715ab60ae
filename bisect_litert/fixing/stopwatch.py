"""Times several .tflite files against each other in one process, their runs interleaved.

One file that imports the standard library, numpy and ai_edge_litert only, like worker.py:

    python stopwatch.py REQUEST.json     prints {"seconds": {"before/gpu": [..], ...}, "failed": {...}}

The request: {"inputs": {name: .npy}, "runs": {id: {"model": path, "accelerator": "cpu"|"gpu"|"gpu+cpu", "env": {}}},
"repeats": N, "budget": seconds}. Reading the outputs belongs to a run: before that a GPU may not have begun. The first
run of each is not counted; it builds kernels.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import numpy as np


class Timed:
    """One model on one accelerator, ready to run."""

    def __init__(self, environment: Any, run: dict[str, Any], inputs: dict[str, np.ndarray]) -> None:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import Options

        both = HardwareAccelerator.GPU | HardwareAccelerator.CPU
        choice = {"cpu": HardwareAccelerator.CPU, "gpu": HardwareAccelerator.GPU, "gpu+cpu": both}[run["accelerator"]]
        for name, value in run.get("env", {}).items():
            os.environ[name] = value
        try:
            self.model = self._compiled(CompiledModel, environment, run["model"], Options, choice, both)
        finally:
            for name in run.get("env", {}):
                del os.environ[name]
        self.key, signature = next(iter(self.model.get_signature_list().items()))
        self.inputs = {}
        for name, detail in self.model.get_input_tensor_details(self.key).items():
            buffer = self.model.create_input_buffer_by_name(self.key, name)
            array = np.require(inputs[name].astype(str(detail["dtype"])), requirements="C")
            buffer.write(array.reshape(-1).view(np.uint8))
            self.inputs[name] = buffer
        details = self.model.get_output_tensor_details(self.key)
        self.outputs, self.sizes = {}, {}
        for name in dict.fromkeys(signature["outputs"]):
            self.outputs[name] = self.model.create_output_buffer_by_name(self.key, name)
            count = int(np.prod(details[name]["shape"], dtype=np.int64))
            self.sizes[name] = count * np.dtype(str(details[name]["dtype"])).itemsize

    @staticmethod
    def _compiled(kind: Any, environment: Any, path: str, options: Any, choice: Any, both: Any) -> Any:
        try:
            return kind.from_file(path, environment=environment, options=options(hardware_accelerators=choice))
        except Exception as error:
            if "Some ops are not accelerated" not in str(error):
                raise
            return kind.from_file(path, environment=environment, options=options(hardware_accelerators=both))

    def run(self) -> float:
        """Runs once and returns the seconds, reading included."""
        start = time.perf_counter()
        self.model.run_by_name(self.key, self.inputs, self.outputs)
        for name, buffer in self.outputs.items():
            buffer.read(self.sizes[name], np.uint8)
        return time.perf_counter() - start


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Times every run of a request."""
    from ai_edge_litert.environment import Environment

    environment = Environment.create()
    inputs = {name: np.load(path, allow_pickle=False) for name, path in request["inputs"].items()}
    ready: dict[str, Timed] = {}
    failed: dict[str, str] = {}
    for name, run in request["runs"].items():
        try:
            ready[name] = Timed(environment, run, inputs)
            ready[name].run()
        except Exception as error:
            ready.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}"
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    started = time.perf_counter()
    for done in range(int(request["repeats"])):
        for name, timed in ready.items():
            seconds[name].append(timed.run())
        if done >= 2 and time.perf_counter() - started > float(request["budget"]):
            break
    return {"seconds": seconds, "failed": failed}


def main(arguments: list[str]) -> int:
    """Answers on the real stdout; what C++ prints goes to stderr."""
    if len(arguments) != 1:
        print("usage: stopwatch.py REQUEST.json", file=sys.stderr)
        return 2
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        found = measure(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        print(json.dumps(found), file=answers, flush=True)
    sys.stdout.flush()
    os._exit(0)  # the runtime's own teardown can abort, and there is nothing left to do


if __name__ == "__main__":
    main(sys.argv[1:])
