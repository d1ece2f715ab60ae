"""A device that is reached by hand: runs the entries of a manifest with LiteRT and writes what their outputs held.

python device.py ROUND RESULTS [ENTRY...]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.environment import Environment
from ai_edge_litert.hardware_accelerator import HardwareAccelerator
from ai_edge_litert.options import GpuOptions, Options


def run(entry: dict[str, Any], folder: Path, results: Path, environment: Environment) -> None:
    shutil.rmtree(results / entry["name"], ignore_errors=True)
    (results / entry["name"]).mkdir(parents=True)
    (results / entry["name"] / "started").write_text(entry["id"])
    os.environ.update(entry["environment"])
    model = None
    for accelerators in filter(None, (entry["accelerators"], entry["fallback"])):
        wanted = HardwareAccelerator.GPU
        if "cpu" in accelerators:
            wanted |= HardwareAccelerator.CPU
        options = Options(
            hardware_accelerators=wanted, gpu_options=GpuOptions(enforce_f32=entry["precision"] == "fp32")
        )
        try:
            model = CompiledModel.from_file(str(folder / entry["model"]), environment=environment, options=options)
            break
        except RuntimeError:
            continue
    assert model is not None
    inputs, outputs = {}, {}
    for port in entry["inputs"]:
        inputs[port["name"]] = model.create_input_buffer_by_name(entry["signature"], port["name"])
        inputs[port["name"]].write(np.frombuffer((folder / port["raw"]).read_bytes(), np.uint8))
    for port in entry["outputs"]:
        outputs[port["name"]] = model.create_output_buffer_by_name(entry["signature"], port["name"])
        filled = np.full(port["bytes"] // 4, 0x7FC0BEEF, np.uint32)
        outputs[port["name"]].write(filled.view(np.uint8))
    model.run_by_name(entry["signature"], inputs, outputs)
    for port in entry["outputs"]:
        np.asarray(outputs[port["name"]].read(port["bytes"], np.uint8)).tofile(results / port["file"])


def main(folder: Path, results: Path, only: list[str]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    environment = Environment.create()
    for entry in manifest["entries"]:
        if not only or entry["name"] in only:
            run(entry, folder, results, environment)
    (results / "device.json").write_text(json.dumps({"device": "Phone 9", "gpu": "Adreno 1", "ai-edge-litert": "2.3"}))


main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
