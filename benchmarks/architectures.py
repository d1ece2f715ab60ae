"""Runs stock transformers architectures with random weights and small configurations to a verdict, and prints a table.

    python benchmarks/architectures.py [--only GLOB] [--json FILE] [--keep DIR]

Healthy models are what a false alarm is measured on: none of these has a planted fault, so every verdict but `none`
has to be explained.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import torch

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]


class FirstOutput(torch.nn.Module):
    """A transformers model that returns its tensor instead of a ModelOutput."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, return_dict=False)[0]  # type: ignore[no-any-return]


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128
    )
    ids = torch.randint(0, 200, (1, 24))
    return BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return ViTModel(config), {"pixel_values": torch.randn(1, 3, 32, 32)}


def resnet() -> Case:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 1, 1], layer_type="basic")
    return ResNetModel(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def swin() -> Case:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return SwinModel(config), {"pixel_values": torch.randn(1, 3, 32, 32)}


def convnext() -> Case:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1])
    return ConvNextModel(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def mobilenet_v2() -> Case:
    from transformers import MobileNetV2Config, MobileNetV2Model

    config = MobileNetV2Config(depth_multiplier=0.35, image_size=64)
    return MobileNetV2Model(config), {"pixel_values": torch.randn(1, 3, 64, 64)}


def llama() -> Case:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaModel(config), {"input_ids": torch.randint(0, 200, (1, 24))}


def whisper_encoder() -> Case:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        num_mel_bins=16,
        d_model=64,
        encoder_layers=3,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        max_source_positions=32,
    )
    return WhisperEncoder(config), {"input_features": torch.randn(1, 16, 64)}


ARCHITECTURES: dict[str, tuple[Callable[[], Case], str]] = {
    "bert": (bert, "**.layer.*"),
    "vit": (vit, "**.layer*.*"),
    "resnet": (resnet, "**.stages.*"),
    "swin": (swin, "**.blocks.*"),
    "convnext": (convnext, "**.stages.*"),
    "mobilenet_v2": (mobilenet_v2, "model.layer.*"),
    "llama": (llama, "model.layers.*"),
    "whisper_encoder": (whisper_encoder, "model.layers.*"),
}


def run(name: str, keep: Path | None) -> dict[str, Any]:
    """Runs one architecture and returns a row."""
    import bisect_litert
    from bisect_litert.errors import BisectError

    build, blocks = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, inputs = build()
    started = time.monotonic()
    row: dict[str, Any] = {"name": name}
    try:
        record = bisect_litert.bisect(
            FirstOutput(model).eval(), inputs, blocks=blocks, name=name, out=keep / name if keep else None, force=True
        )
    except BisectError as error:
        return {**row, "cause": "cannot-test", "summary": error.message, "seconds": time.monotonic() - started}
    return {
        **row,
        "cause": str(record.verdict.cause),
        "blocks": len(record.blocks),
        "tapped": sum(1 for b in record.blocks if b.errors),
        "gpu_ops": record.placement.gpu_ops,
        "cpu_ops": record.placement.cpu_ops,
        "worst_ratio": max((b.ratio for b in record.blocks if b.ratio == b.ratio), default=float("nan")),
        "culprits": [(c.block, str(c.cause)) for c in record.culprits],
        "summary": record.verdict.summary,
        "notes": list(record.verdict.notes),
        "seconds": time.monotonic() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="which architectures, as a glob")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--keep", type=Path, help="keep run folders under this one")
    arguments = parser.parse_args()
    rows = []
    print(f"{'architecture':<16} {'cause':<22} {'blocks':>6} {'gpu/cpu ops':>12} {'ratio':>7} {'s':>6}  culprits")
    for name in fnmatch.filter(ARCHITECTURES, arguments.only):
        row = run(name, arguments.keep)
        rows.append(row)
        ops = f"{row.get('gpu_ops', '')}/{row.get('cpu_ops', '')}"
        print(
            f"{name:<16} {row['cause']:<22} {row.get('blocks', 0):>6} {ops:>12} {row.get('worst_ratio', nan):>7.2f} "
            f"{row['seconds']:>6.1f}  {row.get('culprits', row['summary'])}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
