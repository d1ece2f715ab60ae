"""Healthy blocks of images: each a module from a trunk [1, 32, 16, 16] to what is added to it (healthy_blocks.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from healthy_tokens import Block, Build, one_sign  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE_C, SIDE = 32, 16
"""Channels and side of the trunk."""


def conv(channels: int = IMAGE_C, *, transposed: bool = False, **options: Any) -> Build:
    """One convolution of the trunk."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    return lambda: Block(lambda b, x, _: b.conv(x), conv=kind(IMAGE_C, channels, **options))


def conv_positive(k: int) -> Build:
    """A convolution of positive values with positive weights."""
    return lambda: Block(lambda b, x, _: b.conv(x.abs()), conv=one_sign(nn.Conv2d(IMAGE_C, IMAGE_C, k, padding=k // 2)))


def conv_deep() -> Block:
    """A 3x3 convolution over 512 channels: sums of 4608."""
    return Block(
        lambda b, x, _: b.conv(x.reshape(1, 512, 4, 4)).reshape(1, IMAGE_C, SIDE, SIDE),
        conv=nn.Conv2d(512, 512, 3, padding=1),
    )


def pixels(compute: Callable[[Tensor], Tensor]) -> Build:
    """A function without weights behind a 1x1 convolution."""
    return lambda: Block(lambda b, x, _: compute(b.conv(x)), conv=nn.Conv2d(IMAGE_C, IMAGE_C, 1))


def norm2d(norm: Callable[[], nn.Module]) -> Build:
    """A norm behind a 3x3 convolution."""
    return lambda: Block(lambda b, x, _: b.norm(b.conv(x)), conv=nn.Conv2d(IMAGE_C, IMAGE_C, 3, padding=1), norm=norm())


def batch_norm() -> nn.Module:
    """With statistics as after some training."""
    norm = nn.BatchNorm2d(IMAGE_C)
    norm.running_mean.normal_(std=0.3)
    norm.running_var.uniform_(0.2, 2.0)
    return norm


class ConvNext(Block):
    """A ConvNeXt block whose branch is scaled by 1e-6, held in rank 4."""

    def __init__(self) -> None:
        super().__init__(
            lambda b, x, _: b.branch(x),
            depthwise=nn.Conv2d(IMAGE_C, IMAGE_C, 7, padding=3, groups=IMAGE_C),
            norm=nn.LayerNorm(IMAGE_C),
            up=nn.Linear(IMAGE_C, 4 * IMAGE_C),
            down=nn.Linear(4 * IMAGE_C, IMAGE_C),
        )
        self.scale = nn.Parameter(torch.full((1, 1, 1, IMAGE_C), 1e-6))

    def branch(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def squeeze_excite() -> Block:
    """Channels gated by their own mean."""
    return Block(
        lambda b, x, _: x * torch.sigmoid(b.up(F.relu(b.down(x.mean((2, 3), keepdim=True))))),
        down=nn.Conv2d(IMAGE_C, 8, 1),
        up=nn.Conv2d(8, IMAGE_C, 1),
    )


def inverted_residual() -> Block:
    """As in MobileNetV2."""
    return Block(
        lambda b, x, _: x + b.n3(b.c3(F.relu6(b.n2(b.c2(F.relu6(b.n1(b.c1(x)))))))),
        c1=nn.Conv2d(IMAGE_C, 96, 1, bias=False),
        n1=nn.BatchNorm2d(96),
        c2=nn.Conv2d(96, 96, 3, padding=1, groups=96, bias=False),
        n2=nn.BatchNorm2d(96),
        c3=nn.Conv2d(96, IMAGE_C, 1, bias=False),
        n3=nn.BatchNorm2d(IMAGE_C),
    )


IMAGES: dict[str, Build] = {
    "conv_1x1": conv(kernel_size=1),
    "conv_3x3": conv(kernel_size=3, padding=1),
    "conv_5x5": conv(kernel_size=5, padding=2),
    "conv_depthwise": conv(kernel_size=3, padding=1, groups=IMAGE_C),
    "conv_depthwise_7x7": conv(kernel_size=7, padding=3, groups=IMAGE_C),
    "conv_grouped": conv(kernel_size=3, padding=1, groups=4),
    "conv_dilated": conv(kernel_size=3, padding=2, dilation=2),
    "conv_strided": conv(kernel_size=3, padding=1, stride=2),
    "conv_transposed": conv(kernel_size=2, stride=2, transposed=True),
    "conv_positive": conv_positive(3),
    "conv_k4608": conv_deep,
    "average_pool": pixels(lambda x: F.avg_pool2d(x, 2)),
    "max_pool": pixels(lambda x: F.max_pool2d(x, 2)),
    "global_pool": pixels(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "bilinear": pixels(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)),
    "nearest": pixels(lambda x: F.interpolate(x, scale_factor=2, mode="nearest")),
    "batch_norm": norm2d(batch_norm),
    "group_norm": norm2d(lambda: nn.GroupNorm(4, IMAGE_C)),
    "instance_norm": norm2d(lambda: nn.InstanceNorm2d(IMAGE_C)),
    "convnext_scale_1e-6": ConvNext,
    "squeeze_excite": squeeze_excite,
    "inverted_residual": inverted_residual,
    "conv_relu": pixels(F.relu),
    "conv_silu": pixels(F.silu),
    "conv_mish": pixels(F.mish),
    "channel_softmax": pixels(lambda x: x.softmax(1)),
    "channel_concat": pixels(lambda x: torch.cat([x[:, 16:], x[:, :16]], 1)),
    "flip": pixels(lambda x: x.flip(3)),
}

ALONE = ("group_norm",)
"""Refused in part, which puts ops of its neighbours on the CPU as well."""
