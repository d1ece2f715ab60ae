"""Small modules that the tests convert once (conftest.converted) and share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bisect_litert.graphs.graph import Graph


class Block(nn.Module):
    """A residual block whose tensors carry its name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.fc(x))


class Blocks(nn.Module):
    """Three blocks; the middle one's result is an output that is also consumed, and the last leaves twice."""

    def __init__(self) -> None:
        super().__init__()
        self.b0, self.b1, self.b2 = Block(16), Block(16), Block(16)

    def forward(self, x: torch.Tensor) -> Any:
        middle = self.b1(self.b0(x))
        return middle, self.b2(middle) * 2


class Convolutions(nn.Module):
    """NHWC in the graph, NCHW in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.c0, self.c1 = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c1(torch.relu(self.c0(x)))


class Masked(nn.Module):
    """Attention scores with -inf in them, and values far beyond fp16 that come back into its range."""

    def forward(self, x: torch.Tensor) -> Any:
        mask = torch.triu(torch.ones(6, 6), diagonal=1).bool()
        scores = torch.masked_fill(x @ x.transpose(-1, -2), mask, float("-inf"))
        return torch.softmax(scores, -1), (x * 1e20) * 1e-20


class SharedMask(nn.Module):
    """A mask that is computed once for two layers; squares in the second one leave fp16's range."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(keep).masked_fill(keep == 0, -3.4e38)
        x = torch.softmax(x + mask, -1)
        return torch.softmax(x + mask, -1) + torch.sqrt((x * 3e4) * (x * 3e4)) * 1e-4


class Arithmetic(nn.Module):
    """Chains of ADD and MUL with constants that fp16 cannot hold exactly."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 1.0001 + y
        z = (z * y) * 3.1415927
        return z * z - x


class Sums(nn.Module):
    """Everything that accumulates."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> Any:
        return x.sum(1), x.mean(2), torch.cumsum(x, 1), self.fc(x), torch.matmul(x, x.transpose(1, 2))


class Overflowing(nn.Module):
    """A layer norm written out, on values whose squares leave fp16's range."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


class Flushed(nn.Module):
    """Squares that fp16 holds as zero, divided by."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = x * 1e-5
        return x / (small * small * 5e4)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


MODELS: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...]]] = {
    "blocks": (Blocks, (numbers(4, 16),)),
    "convolutions": (Convolutions, (numbers(2, 3, 7, 6),)),
    "shared mask": (SharedMask, (numbers(4, 8, scale=9.0), (numbers(1, 8, seed=1) > -1).float())),
    "masked": (Masked, (numbers(2, 6, 8),)),
    "arithmetic": (Arithmetic, (numbers(4, 8), numbers(4, 8, seed=1))),
    "sums": (Sums, (numbers(2, 5, 12),)),
    "overflowing": (Overflowing, (numbers(2, 5, 16, scale=300.0),)),
    "flushed": (Flushed, (1 + numbers(4, 16).abs(),)),
}


@dataclass(frozen=True)
class Converted:
    """A module and its graph."""

    module: nn.Module
    args: tuple[torch.Tensor, ...]
    graph: Graph
    path: Path

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """By signature name."""
        return {f"args_{i}": value.numpy() for i, value in enumerate(self.args)}


@dataclass(frozen=True)
class CpuRun:
    """What the plain CPU kernels gave."""

    outputs: dict[str, np.ndarray]
    tensors: dict[int, np.ndarray]


def run_cpu(graph: Graph, inputs: Mapping[str, np.ndarray], folder: Path) -> CpuRun:
    """Writes a graph, reads it back, and runs it op by op."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    path = graph.write(folder / "graph.tflite")
    interpreter = Interpreter(
        model_path=str(path),
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    for port in graph.inputs:
        interpreter.set_tensor(port.tensor, inputs[port.name])
    interpreter.invoke()
    written = dict.fromkeys([p.tensor for p in graph.inputs] + [t for op in graph.ops for t in op.outputs])
    tensors = {t: interpreter.get_tensor(t) for t in written}
    outputs = {
        p.name: tensors[p.tensor] if p.tensor in tensors else interpreter.get_tensor(p.tensor) for p in graph.outputs
    }
    return CpuRun(outputs, tensors)


def run_xnnpack(graph: Graph, inputs: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """Runs a graph on the CPU as it ships, outputs only."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(graph.write(folder / "xnnpack.tflite")))
    interpreter.allocate_tensors()
    for port in graph.inputs:
        interpreter.set_tensor(port.tensor, inputs[port.name])
    interpreter.invoke()
    return {p.name: interpreter.get_tensor(p.tensor) for p in graph.outputs}
