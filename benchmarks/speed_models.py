"""The models that the speed benchmarks time: stock architectures with random weights, and made ones with a known fault.

A file of models for `bisect-litert benchmarks/speed_models.py:NAME`; `BLOCKS` has the blocks of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]

BLOCKS = {
    "bert_mini": "model.encoder.layer.*",
    "vit_tiny": "model.layers.*",
    "resnet_18": "model.encoder.stages.*.layers.*",
    "transformer_24": "blocks.*",
    "ops_1000": "blocks.*",
    "transformer_12": "blocks.*",
}
"""Glob of the blocks, by model."""
FAULTS = {"transformer_24": "blocks.12", "transformer_12": "blocks.6"}
"""Block with the planted fault, by model; the others are healthy."""


class FirstOutput(torch.nn.Module):
    """A transformers model that returns its tensor instead of a ModelOutput."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**inputs, return_dict=False)[0]  # type: ignore[no-any-return]


def bert_mini() -> Case:
    """The published size: 4 layers of 256, over 128 tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    ids = torch.randint(0, config.vocab_size, (1, 128))
    return FirstOutput(BertModel(config)).eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vit_tiny() -> Case:
    """The published size: 12 layers of 192, images of 224."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
    return FirstOutput(ViTModel(config)).eval(), {"pixel_values": torch.randn(1, 3, 224, 224)}


def resnet_18() -> Case:
    """The published size, images of 224."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return FirstOutput(ResNetModel(config)).eval(), {"pixel_values": torch.randn(1, 3, 224, 224)}


class Attention(torch.nn.Module):
    """Plain multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        # Of rank 4 throughout: the delegate refuses more, and the model would run on the CPU for the most part.
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))


class Block(torch.nn.Module):
    """A pre-norm transformer block; `inside` scales what its second norm is given, and takes it back out after it."""

    def __init__(self, width: int, heads: int, inside: float = 1.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        # A norm takes any factor out again; in fp16 the squares inside it overflow.
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x * self.inside))))


class Transformer(torch.nn.Module):
    """Blocks behind a linear layer, with an overflow planted in one of them or none."""

    def __init__(self, depth: int, width: int, heads: int, fault: int = -1) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(width, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, 2000.0 if i == fault else 1.0) for i in range(depth))
        self.head = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def transformer(depth: int, *, width: int = 128, length: int = 64, fault: int = -1) -> Case:
    """A transformer of any depth."""
    torch.manual_seed(0)
    return Transformer(depth, width, 4, fault).eval(), {"x": torch.randn(1, length, width)}


transformer_24 = functools.partial(transformer, 24, fault=12)
transformer_12 = functools.partial(transformer, 12, fault=6)


class Mixer(torch.nn.Module):
    """Twenty small ops with nothing to fuse away, and a residual around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(self.norm(x)))
        y = torch.sigmoid(y) * y + torch.cos(y)
        y = torch.nn.functional.softplus(self.second(y)) - torch.abs(y)
        return x + 0.1 * y


class Mixers(torch.nn.Module):
    """Many of them in a row."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Mixer(width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def mixers(depth: int, *, width: int = 64, length: int = 32) -> Case:
    """About `OPS_PER_MIXER` ops a block."""
    torch.manual_seed(0)
    return Mixers(depth, width).eval(), {"x": torch.randn(1, length, width)}


ops_1000 = functools.partial(mixers, 40)


class Step(torch.nn.Module):
    """A few ops on each element alone: as large as one likes, and nothing to add up."""

    def __init__(self, phase: float) -> None:
        super().__init__()
        self.phase = phase

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.sin(3.0 * x + self.phase)


class Mixed(torch.nn.Module):
    """A linear layer and a residual around it: as many as one likes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.tanh(self.linear(x))


class Normed(Mixed):
    """The same behind a norm of large values, whose squares overflow in fp16."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.tanh(self.linear(self.norm(x * 2000.0)))


class Chain(torch.nn.Module):
    """Blocks in a row."""

    def __init__(self, blocks: list[torch.nn.Module]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def plain(depth: int, elements: int) -> Case:
    """Blocks that return so many elements each."""
    torch.manual_seed(0)
    rows = next(n for n in range(int(elements**0.5), 0, -1) if elements % n == 0)
    blocks: list[torch.nn.Module] = [Step(float(phase)) for phase in 6.28 * torch.rand(depth)]
    return Chain(blocks).eval(), {"x": torch.randn(1, rows, elements // rows)}


def mixed(depth: int, elements: int, fault: int = -1) -> Case:
    """The same with a linear layer of 64 in each."""
    torch.manual_seed(0)
    blocks: list[torch.nn.Module] = [Normed(64) if i == fault else Mixed(64) for i in range(depth)]
    return Chain(blocks).eval(), {"x": torch.randn(1, elements // 64, 64)}


_SIZED: dict[str, Callable[..., Case]] = {
    "transformer_of": lambda depth: transformer(depth, fault=depth * 6 // 10),
    "plain": plain,
    "mixed": mixed,
    "culprit": lambda depth, elements: mixed(depth, elements, fault=depth * 7 // 10),
}


def __getattr__(name: str) -> functools.partial[Case]:
    """Models of any size: `transformer_of_N` with an overflow in the block behind six tenths of them, `plain_N_E` and
    `mixed_N_E` of N blocks that return E elements each, `culprit_N_E` like the last with an overflow in the block
    behind seven tenths of them."""
    for kind, make in _SIZED.items():
        sizes = name.removeprefix(f"{kind}_").split("_")
        if name.startswith(f"{kind}_") and all(size.isdigit() for size in sizes):
            return functools.partial(make, *map(int, sizes))
    raise AttributeError(name)
