"""Asks LiteRT's GPU delegate whether it accepts an adapter here: runs x * 2 + 1 on it and checks the numbers.

Usage: python scripts/probe.py. Exit code 0: accepted, the adapter's name is on stdout. 1: not, the delegate's own words
are on stderr. It needs only numpy and ai_edge_litert, so that scripts/setup can ask before anything of ours works.
scripts/probe.tflite is litert_torch.convert of a module that returns x * 2.0 + 1.0 for a [1, 4, 4, 4] input.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

ADAPTER = re.compile(r"Selected adapter: *(.+)")
TELLING = re.compile(r"adapter|Vulkan|vulkan")


def run_on_gpu(model: Path) -> bool:
    """Whether the numbers of a run on the GPU are right; raises what the delegate raises."""
    import numpy as np
    from ai_edge_litert.compiled_model import CompiledModel, HardwareAccelerator

    compiled = CompiledModel.from_file(str(model), hardware_accel=HardwareAccelerator.GPU)
    inputs, outputs = compiled.create_input_buffers(0), compiled.create_output_buffers(0)
    x = np.arange(64, dtype=np.float32)
    inputs[0].write(x)
    compiled.run_by_index(0, inputs, outputs)
    return np.array_equal(np.asarray(outputs[0].read(64, np.float32)).ravel(), x * 2 + 1)


def main() -> int:
    """Runs the probe with the runtime's log caught, since the adapter's name stands only there."""
    answer, complaint = os.dup(1), os.dup(2)
    with tempfile.TemporaryDirectory() as runtime, tempfile.TemporaryFile() as log:
        os.environ.setdefault("XDG_RUNTIME_DIR", runtime)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            trouble = "" if run_on_gpu(Path(__file__).with_suffix(".tflite")) else "the numbers are wrong"
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        log.seek(0)
        text = log.read().decode(errors="replace")
    adapter = ADAPTER.search(text)
    if adapter and not trouble:
        os.write(answer, f"{adapter.group(1).strip()}\n".encode())
        return 0
    lines = [line.strip() for line in text.splitlines() if TELLING.search(line)][-4:]
    lines.append(trouble or "the delegate selected no adapter")
    os.write(complaint, "".join(f"probe: {line}\n" for line in lines).encode())
    return 1


if __name__ == "__main__":
    # The runtime logs from its destructors too, into a descriptor that is closed by then: leave without them.
    os._exit(main())
