"""Healthy blocks of tokens: each a module from a trunk [1, 64, 64] to what is added to it (healthy_blocks.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

T, C, HEADS = 64, 64, 4
"""Tokens, channels and attention heads of the trunk."""


class Block(nn.Module):
    """A function with weights: `compute(self, trunk, extras)`."""

    def __init__(self, compute: Callable[[Any, Tensor, dict[str, Tensor]], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        return self.compute(self, x, extras)


Build = Callable[[], Block]


def one_sign(layer: Any) -> Any:
    """Makes a layer's weights positive."""
    with torch.no_grad():
        layer.weight.abs_()
    return layer


def linear(k: int, *, positive: bool = False, weights: bool = False) -> Build:
    """A Linear over K values of the trunk, of random sign or positive, with weights of random sign or positive."""

    def build() -> Block:
        fc = nn.Linear(k, 64 if k > 512 else k)

        def compute(b: Any, x: Tensor, _: dict[str, Tensor]) -> Tensor:
            flat = x.abs() if positive else x
            out: Tensor = b.fc(flat.reshape(1, T * C // k, k))
            return out if k > 512 else out.reshape(1, T, C)

        return Block(compute, fc=one_sign(fc) if weights else fc)

    return build


def mlp(activation: Callable[[Tensor], Tensor], hidden: int = 4 * C) -> Build:
    """Linear, activation, Linear."""
    return lambda: Block(
        lambda b, x, _: b.down(activation(b.up(x))), up=nn.Linear(C, hidden), down=nn.Linear(hidden, C)
    )


def gated(gate: Callable[[Tensor], Tensor]) -> Build:
    """A gated linear unit."""
    return lambda: Block(
        lambda b, x, _: b.down(gate(b.a(x)) * b.b(x)), a=nn.Linear(C, 128), b=nn.Linear(C, 128), down=nn.Linear(128, C)
    )


def attention(score: Callable[[Tensor, Tensor, Tensor, dict[str, Tensor]], Tensor]) -> Build:
    """Multi-head attention around a function of query, key and value, each [1, heads, T, C / heads]."""

    def compute(b: Any, x: Tensor, extras: dict[str, Tensor]) -> Tensor:
        q, k, v = (part.reshape(1, T, HEADS, -1).transpose(1, 2) for part in b.qkv(x).chunk(3, dim=-1))
        return b.out(score(q, k, v, extras).transpose(1, 2).reshape(1, T, C))

    return lambda: Block(compute, qkv=nn.Linear(C, 3 * C), out=nn.Linear(C, C))


def plain_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores."""
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves convention."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Rotary(Block):
    """Rotary positions below 16, from a rank-4 table or computed from runtime positions."""

    def __init__(self, computed: bool) -> None:
        super().__init__(lambda b, x, extras: b.turn(x, extras), fc=nn.Linear(C, C))
        frequency = 100.0 ** (-torch.arange(0, 8) / 8)
        angle = (torch.arange(T) % 16)[:, None] * torch.cat([frequency, frequency])
        self.computed = computed
        self.register_buffer("frequency", torch.cat([frequency, frequency])[None, None, None])
        self.register_buffer("cos", angle.cos()[None, None])
        self.register_buffer("sin", angle.sin()[None, None])

    def turn(self, x: Tensor, extras: dict[str, Tensor]) -> Tensor:
        heads = self.fc(x).reshape(1, T, HEADS, -1).transpose(1, 2)
        cos, sin = self.cos, self.sin
        if self.computed:
            angle = extras["positions"][:, None, :, None] * self.frequency
            cos, sin = angle.cos(), angle.sin()
        return rotate(heads, cos, sin).transpose(1, 2).reshape(1, T, C)


class Recurrent(Block):
    """A recurrent cell unrolled over the first 8 tokens."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__(lambda b, x, _: b.unroll(x), cell=cell)

    def unroll(self, x: Tensor) -> Tensor:
        h = c = x[:, 0] * 0.0
        seen = []
        for t in range(8):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[:, t], (h, c))
            else:
                h = self.cell(x[:, t], h)
            seen.append(h)
        return torch.stack([*seen] * (T // 8), dim=1)


def residuals(depth: int) -> Build:
    """Pre-norm residual MLPs, one after the other, as one block."""

    def compute(b: Any, x: Tensor, _: dict[str, Tensor]) -> Tensor:
        for norm, up, down in zip(b.norms, b.ups, b.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x

    return lambda: Block(
        compute,
        norms=nn.ModuleList(nn.LayerNorm(C) for _ in range(depth)),
        ups=nn.ModuleList(nn.Linear(C, 2 * C) for _ in range(depth)),
        downs=nn.ModuleList(nn.Linear(2 * C, C) for _ in range(depth)),
    )


def op(compute: Callable[[Tensor], Tensor]) -> Build:
    """A function without weights, behind a Linear so that it has an op before it to be fused with."""
    return lambda: Block(lambda b, x, _: compute(b.fc(x)), fc=nn.Linear(C, C))


def heads(x: Tensor) -> Tensor:
    """Tokens as [1, heads, T, C / heads]."""
    return x.reshape(1, T, HEADS, -1).transpose(1, 2)


def rms_norm(x: Tensor) -> Tensor:
    """As Llama writes it."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def sdpa(q: Tensor, k: Tensor, v: Tensor, extras: dict[str, Tensor]) -> Tensor:
    """Fused causal attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


TOKENS: dict[str, Build] = {
    "linear_k64": linear(64),
    "linear_k64_positive": linear(64, positive=True),
    "linear_k512": linear(512),
    "linear_k512_positive": linear(512, positive=True),
    "linear_k512_one_sign": linear(512, positive=True, weights=True),
    "linear_k4096": linear(4096),
    "linear_k4096_positive": linear(4096, positive=True),
    "linear_k4096_one_sign": linear(4096, positive=True, weights=True),
    "mlp_gelu": mlp(F.gelu),
    "mlp_gelu_tanh": mlp(lambda x: F.gelu(x, approximate="tanh")),
    "mlp_silu": mlp(F.silu),
    "mlp_relu": mlp(F.relu),
    "mlp_tanh": mlp(torch.tanh),
    "mlp_sigmoid": mlp(torch.sigmoid),
    "mlp_softplus": mlp(F.softplus),
    "mlp_leaky_relu": mlp(F.leaky_relu),
    "mlp_elu": mlp(F.elu),
    "mlp_hardswish": mlp(F.hardswish),
    "mlp_wide": mlp(F.gelu, 1024),
    "glu": gated(torch.sigmoid),
    "swiglu": gated(F.silu),
    "layer_norm": lambda: Block(lambda b, x, _: b.norm(b.fc(x)), fc=nn.Linear(C, C), norm=nn.LayerNorm(C)),
    "rms_norm": op(rms_norm),
    "l2_normalize": op(lambda x: F.normalize(x, dim=-1)),
    "attention": attention(lambda q, k, v, _: plain_scores(q, k).softmax(-1) @ v),
    "attention_mask_input": attention(lambda q, k, v, e: (plain_scores(q, k) + e["bias"]).softmax(-1) @ v),
    "attention_causal": attention(sdpa),
    "attention_masked_fill": attention(
        lambda q, k, v, e: plain_scores(q, k).masked_fill(e["hide"], -1e4).softmax(-1) @ v
    ),
    "attention_cosine": attention(
        lambda q, k, v, _: (8 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)).softmax(-1) @ v
    ),
    "embedding": lambda: Block(lambda b, x, e: b.table(e["ids"]) + x, table=nn.Embedding(100, C)),
    "softmax": op(lambda x: x.softmax(-1)),
    "log_softmax": op(lambda x: x.log_softmax(-1)),
    "logsumexp": op(lambda x: x.logsumexp(-1, keepdim=True)),
    "residual_1": residuals(1),
    "residual_3": residuals(3),
    "residual_6": residuals(6),
    "concat": op(lambda x: torch.cat([x[..., C // 2 :], x[..., : C // 2]], dim=-1)),
    "split": op(lambda x: torch.cat([p * s for p, s in zip(x.split(16, -1), (1.0, 2.0, 0.5, 3.0), strict=True)], -1)),
    "chunk": op(lambda x: torch.cat([x.chunk(2, -1)[0] * 2.0, x.chunk(2, -1)[1]], -1)),
    "rotary_table": lambda: Rotary(computed=False),
    "rotary_computed": lambda: Rotary(computed=True),
    "cumsum_64": op(lambda x: x.cumsum(1)),
    "cumsum_64_positive": op(lambda x: x.abs().cumsum(1)),
    "mean_tokens": op(lambda x: x.mean(1, keepdim=True)),
    "mean_tokens_positive": op(lambda x: x.abs().mean(1, keepdim=True)),
    "sum_tokens": op(lambda x: x.abs().sum(1, keepdim=True)),
    "amax_tokens": op(lambda x: x.amax(1, keepdim=True)),
    "variance": op(lambda x: x.var(-1, keepdim=True)),
    "floor_of_integers": lambda: Block(
        lambda b, x, e: b.fc(x) + torch.floor(e["ids"].float() * 0.5)[..., None] * 0.02, fc=nn.Linear(C, C)
    ),
    "one_hot_of_max": op(lambda x: (x >= x.amax(-1, keepdim=True)).to(x.dtype) * x),
    "clamp": op(lambda x: x.clamp(-0.5, 0.5)),
    "exp": op(torch.exp),
    "log_of_positive": op(lambda x: torch.log(x.abs() + 0.1)),
    "sqrt": op(lambda x: torch.sqrt(x.abs() + 0.01)),
    "divide": op(lambda x: x / (x.abs() + 1.0)),
    "power": op(lambda x: x.pow(3)),
    "sin": op(torch.sin),
    "where": op(lambda x: torch.where(x > 0, x, 0.1 * x)),
    "matmul": lambda: Block(
        lambda b, x, _: b.a(x) @ b.b(x).transpose(-1, -2) / 8, a=nn.Linear(C, C), b=nn.Linear(C, C)
    ),
    "outer_heads": op(lambda x: (heads(x).transpose(-1, -2) @ heads(x)).reshape(1, T, 16)[..., :1] * x / 64),
    "lstm_8": lambda: Recurrent(nn.LSTMCell(C, C)),
    "gru_8": lambda: Recurrent(nn.GRUCell(C, C)),
}

JUMPS: dict[str, Build] = {
    "floor_of_sum": op(lambda x: torch.floor(x + x)),
    "floor_of_product": op(lambda x: torch.floor(x * 3.7)),
    "sign": op(torch.sign),
    "remainder": op(lambda x: torch.remainder(x, 0.7)),
    "round_to_64th": op(lambda x: torch.round(x * 64.0)),
}
"""Honest kernels that make a jump of a small difference: measured, but no measure of what a healthy block costs."""
