"""An image-restoration transformer of the DehazeFormer kind, as one writes it for training.

The published ideas: a layer norm over the whole image that remembers mean and deviation and gives them back behind the
layer (rescaled layer norm), attention in windows with a bias that a small network makes of relative positions, branches
fused by selective kernels, a 1x1 convolution with pixel shuffle to go up, and an output that scales and shifts the
image. At 256 x 256 with 24 channels the first norm takes one mean over 1.5 million elements.

`restoration_clean.py` has the same network, with the same weights, in the form a GPU takes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WIDTHS, HEADS, WINDOW, SIZE = (24, 48, 24), (2, 4, 2), 8, 256
Case = tuple[nn.Module, Tensor]


class RescaledNorm(nn.Module):
    """Normalises an image over channels and places, and says how to undo it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(1, width, 1, 1)), nn.Parameter(torch.zeros(1, width, 1, 1))
        self.to_scale, self.to_shift = nn.Conv2d(1, width, 1), nn.Conv2d(1, width, 1)
        nn.init.trunc_normal_(self.to_scale.weight, std=0.02)
        nn.init.trunc_normal_(self.to_shift.weight, std=0.02)
        nn.init.ones_(self.to_scale.bias)
        nn.init.zeros_(self.to_shift.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        deviation = ((x - mean).square().mean(dim=(1, 2, 3), keepdim=True) + 1e-5).sqrt()
        y = (x - mean) / deviation * self.weight + self.bias
        return y, self.to_scale(deviation), self.to_shift(mean)


class RelativeBias(nn.Module):
    """Attention bias from the log-spaced distance of two places in a window."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, heads))
        place = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij")).flatten(1)
        apart = (place[:, :, None] - place[:, None, :]).permute(1, 2, 0).float()
        self.register_buffer("apart", apart.sign() * (1.0 + apart.abs()).log())

    def forward(self) -> Tensor:
        bias: Tensor = self.net(self.apart).permute(2, 0, 1)
        return bias


class WindowAttention(nn.Module):
    """Attention among the places of each window, beside a depthwise convolution over all of them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qk, self.v = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.bias = RelativeBias(heads)
        self.local = nn.Conv2d(width, width, 5, padding=2, groups=width, padding_mode="reflect")
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        v = self.v(x)
        qkv = torch.cat([self.qk(x), v], dim=1)
        return self.out(self.local(v) + self.attend(qkv))  # type: ignore[no-any-return]

    def attend(self, qkv: Tensor) -> Tensor:
        batch, wide, height, width = qkv.shape
        across, down, channels = width // WINDOW, height // WINDOW, wide // 3
        windows = qkv.view(batch, wide, down, WINDOW, across, WINDOW).permute(0, 2, 4, 3, 5, 1)
        windows = windows.reshape(-1, WINDOW * WINDOW, 3, self.heads, channels // self.heads)
        q, k, v = windows.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(channels // self.heads) + self.bias()
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, down, across, WINDOW, WINDOW, channels)
        return mixed.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, height, width)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = RescaledNorm(width)
        self.attention = WindowAttention(width, heads)
        self.mlp = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.ReLU(), nn.Conv2d(2 * width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        y, scale, shift = self.norm(x)
        x = x + self.attention(y) * scale + shift
        out: Tensor = x + self.mlp(x)
        return out


class SelectiveFusion(nn.Module):
    """Adds two branches, each channel with a share of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(width // 8, 4)
        self.shares = nn.Sequential(nn.Conv2d(width, inner, 1), nn.ReLU(), nn.Conv2d(inner, 2 * width, 1))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        both = torch.stack([one, other], dim=1)
        shares = self.shares(both.sum(1).mean(dim=(2, 3), keepdim=True))
        shares = shares.view(one.shape[0], 2, one.shape[1], 1, 1).softmax(dim=1)
        return (both * shares).sum(1)


class Up(nn.Module):
    """A 1x1 convolution and a pixel shuffle: twice the size."""

    def __init__(self, width: int, out: int, factor: int = 2) -> None:
        super().__init__()
        self.conv, self.factor = nn.Conv2d(width, out * factor**2, 1), factor

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pixel_shuffle(self.conv(x), self.factor)


class Restoration(nn.Module):
    """Down once and up once, with a skip fused in, and a soft reconstruction of the image."""

    def __init__(self) -> None:
        super().__init__()
        narrow, wide, last = WIDTHS
        self.embed = nn.Conv2d(3, narrow, 3, padding=1, padding_mode="reflect")
        self.first = Block(narrow, HEADS[0])
        self.down = nn.Conv2d(narrow, wide, 2, stride=2)
        self.middle = Block(wide, HEADS[1])
        self.up = Up(wide, last)
        self.skip = nn.Conv2d(narrow, last, 1)
        self.fusion = SelectiveFusion(last)
        self.last = Block(last, HEADS[2])
        self.head = nn.Conv2d(last, 4, 3, padding=1, padding_mode="reflect")

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(self.embed(image))
        y = self.up(self.middle(self.down(x)))
        y = self.last(self.fusion(y, self.skip(x)))
        found = self.head(y)
        factor, shift = found[:, :1], found[:, 1:]
        return factor * image - shift + image


def plain() -> Case:
    return Restoration().eval(), _image()


def _image() -> Tensor:
    """A bright, hazy picture: smooth, with its mean far from zero, as real ones are."""
    torch.manual_seed(1)
    rough = nn.functional.interpolate(torch.rand(1, 3, 16, 16), size=(SIZE, SIZE), mode="bilinear")
    return 0.55 + 0.4 * rough + 0.05 * torch.rand(1, 3, SIZE, SIZE)
