"""Rewrites applied to small functions, on the CPU in PyTorch and on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bisect_litert.devices import placement
from bisect_litert.devices.jobs import Job
from bisect_litert.devices.runners import Runner
from bisect_litert.graphs.conversion import convert, input_names
from bisect_litert.rewrites.catalogue import rewrites
from bisect_litert.rewrites.contract import Replacement
from bisect_litert.rewrites.region import Call, Region


class Part(nn.Module):
    """A function of inputs and of buffers."""

    def __init__(self, function: Callable[..., Any], *held: torch.Tensor) -> None:
        super().__init__()
        self.function, self.count = function, len(held)
        for number, tensor in enumerate(held):
            self.register_buffer(f"held{number}", tensor)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, *[getattr(self, f"held{i}") for i in range(self.count)])


def proposals(name: str, module: nn.Module, *inputs: torch.Tensor) -> list[Replacement]:
    """Returns what a rewrite proposes for a module."""
    rewrite = next(r for r in rewrites() if r.name == name)
    return list(rewrite.propose(Region("part", module.eval(), (Call(inputs, {}),), rewrite.causes[0])))


def rewritten(name: str, module: nn.Module, *inputs: torch.Tensor) -> nn.Module:
    """Returns a module as a rewrite writes it."""
    (replacement,) = proposals(name, module, *inputs)
    assert replacement.changes
    return replacement.build(module)


def leaves(returned: Any) -> list[torch.Tensor]:
    """Returns what a module returns as a list."""
    return [returned] if isinstance(returned, torch.Tensor) else list(returned)


def difference(wanted: Any, got: Any) -> float:
    """Returns the largest difference relative to the largest magnitude, over all outputs."""
    worst = 0.0
    for w, g in zip(leaves(wanted), leaves(got), strict=True):
        assert w.shape == g.shape
        worst = max(worst, float((g - w).abs().max() / w.abs().max().clamp(min=1e-30)))
    return worst


def on_gpu(
    modules: Mapping[str, nn.Module], inputs: tuple[torch.Tensor, ...], folder: Path
) -> dict[str, tuple[float, set[str]]]:
    """Runs modules on the GPU; returns each one's largest relative L2 error, and the op types that were refused."""
    found = errors_on_gpu(modules, inputs, folder)
    return {name: (float(np.max(errors)), refused) for name, (errors, refused) in found.items()}


def errors_on_gpu(
    modules: Mapping[str, nn.Module], inputs: tuple[torch.Tensor, ...], folder: Path
) -> dict[str, tuple[list[float], set[str]]]:
    """The same with one error for each output."""
    jobs, graphs = [], {}
    for name, module in modules.items():
        graphs[name] = convert(module, inputs, {}, folder / f"{name}.tflite", folder / f"{name}.log")
        jobs.append(Job(name, folder / f"{name}.tflite", "gpu", input_names(graphs[name], inputs, {})))
    with Runner(folder / "run", 300.0) as runner:
        results = runner.run(jobs)
    found = {}
    for name, module in modules.items():
        result, graph = results[name], graphs[name]
        assert result.ok, result.detail
        with torch.no_grad():
            wanted = leaves(module(*inputs))
        errors = []
        for tensor, port in zip(wanted, graph.outputs, strict=True):
            got = np.asarray(result.outputs[port.name], np.float64)
            errors.append(np.linalg.norm(got - tensor.double().numpy()) / np.linalg.norm(tensor.double().numpy()))
        log = placement.read(result.log_text, len(graph.ops), result.adapter_line)
        found[name] = ([float(error) for error in errors], {r.op for r in log.refused})
    return found
