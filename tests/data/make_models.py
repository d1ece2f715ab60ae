"""Makes the .tflite files beside it, which are committed: `python tests/data/make_models.py`."""

from __future__ import annotations

import copy
from pathlib import Path

import litert_torch
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

HERE = Path(__file__).parent


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.b(torch.nn.functional.gelu(self.a(x)))


class Kinds(torch.nn.Module):
    def forward(self, x, i, m):
        y = torch.where(m, x, -x) * 2.0
        return y, y > 0, i + 3, y.sum(), i.sum()


class Scalar(torch.nn.Module):
    def forward(self, x, s):
        return x * s


class Rank5(torch.nn.Module):
    def forward(self, x):
        return torch.exp(torch.tanh(x).reshape(1, 2, 2, 3, 4).permute(0, 2, 1, 4, 3).reshape(4, 12)) * 0.5


class Cast(torch.nn.Module):
    def forward(self, x):
        return (x > 0).float() * x + torch.exp(x)


class Unused(torch.nn.Module):
    def forward(self, x, y):
        return x * 2 + 1, torch.ones(3)


class ArgMax(torch.nn.Module):
    def forward(self, x):
        return x.argmax(-1), x.argmax(-1) + 5


def tapped(model, tensor: int, name: str):
    model = copy.deepcopy(model)
    graph, entry = model.subgraphs[0], schema.TensorMapT()
    graph.outputs = [*graph.outputs, tensor]
    entry.name, entry.tensorIndex = name, tensor
    model.signatureDefs[0].outputs.append(entry)
    return model


def main() -> None:
    x = torch.randn(4, 12)
    cases = {
        "mlp": (Mlp(), (torch.randn(3, 8),), {}),
        "kinds": (Kinds(), (torch.randn(2, 3), torch.arange(4), torch.ones(2, 3, dtype=torch.bool)), {}),
        "scalar": (Scalar(), (torch.randn(2, 3), torch.tensor(2.0)), {}),
        "rank5": (Rank5(), (x,), {}),
        "cast": (Cast(), (x,), {}),
        "unused": (Unused(), (torch.randn(2, 3), torch.randn(2)), {}),
        "int64": (ArgMax(), (torch.randn(4, 8),), {"enable_x64": True}),
    }
    for name, (module, inputs, options) in cases.items():
        litert_torch.convert(module.eval(), inputs, **options).export(str(HERE / f"{name}.tflite"))
    mlp = flatbuffer_utils.read_model(str(HERE / "mlp.tflite"))
    repeated = tapped(mlp, mlp.subgraphs[0].outputs[0], "output_1")
    flatbuffer_utils.write_model(repeated, str(HERE / "repeated_output.tflite"))
    mlp.signatureDefs = []
    flatbuffer_utils.write_model(mlp, str(HERE / "no_signature.tflite"))
    cast = flatbuffer_utils.read_model(str(HERE / "cast.tflite"))
    names = [flatbuffer_utils.opcode_to_name(cast, op.opcodeIndex) for op in cast.subgraphs[0].operators]
    output = cast.subgraphs[0].operators[names.index("CAST")].outputs[0]
    flatbuffer_utils.write_model(tapped(cast, output, "output_1"), str(HERE / "tapped_cast.tflite"))


if __name__ == "__main__":
    main()
