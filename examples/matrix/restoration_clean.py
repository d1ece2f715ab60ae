"""The network of restoration.py in the form a GPU takes: the same weights, the same result in PyTorch.

What is written differently, each for a reason that the matrix shows:

- a mean over all of an image is taken in steps, over windows of equal size, so that no sum grows long;
- windows are cut and put together without a tensor of more than four axes;
- the attention bias is a constant of rank 4 instead of a network that makes it anew;
- shares of two branches come from a sigmoid of their difference instead of a softmax over a fifth axis;
- going up is a convolution over the image with zeros between its pixels, which is what pixel shuffle behind a 1x1
  convolution computes.
"""

from __future__ import annotations

import math

import torch
from restoration import SIZE, WINDOW, Block, Case, Restoration, SelectiveFusion, Up, WindowAttention, _image
from restoration import RescaledNorm as PlainNorm
from torch import Tensor, nn


def equal_mean(x: Tensor) -> Tensor:
    """The mean of an image, [1, C, H, W] to [1, 1, 1, 1], as means of means over windows of equal size."""
    while min(x.shape[-2:]) > 1 and x.shape[-1] % 2 == 0 and x.shape[-2] % 2 == 0:
        step = 8 if x.shape[-1] % 8 == 0 and x.shape[-2] % 8 == 0 else 2
        x = nn.functional.avg_pool2d(x, step)
    x = x.mean(dim=(2, 3), keepdim=True) if x.shape[-1] * x.shape[-2] > 1 else x
    return x.mean(dim=1, keepdim=True)


class CleanNorm(PlainNorm):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = equal_mean(x)
        centred = x - mean
        deviation = (equal_mean(centred * centred) + 1e-5).sqrt()
        return centred / deviation * self.weight + self.bias, self.to_scale(deviation), self.to_shift(mean)


class CleanAttention(WindowAttention):
    """Windows in four axes: rows of windows first, then the windows of a row; one head after the other."""

    def bake(self) -> None:
        """Turns the bias into a constant, once the weights are known.

        It is made contiguous because litert-torch 0.10 mixes up strided constants of one shape (strided_constants.py).
        """
        self.register_buffer("baked", self.bias().detach()[None].contiguous())
        del self.bias

    def attend(self, qkv: Tensor) -> Tensor:
        _, wide, height, width = qkv.shape
        channels = wide // 3
        q, k, v = (self._windows(part) for part in qkv.split(channels, dim=1))
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(channels // self.heads)) + self.baked
        mixed = scores.softmax(-1) @ v
        return self._image(mixed.transpose(1, 2), channels, height, width)

    def _windows(self, x: Tensor) -> Tensor:
        """[1, C, H, W] to [windows, heads, places, C / heads]."""
        _, channels, height, width = x.shape
        x = x.permute(0, 2, 3, 1).reshape(height // WINDOW, WINDOW, width // WINDOW, WINDOW * channels)
        x = x.transpose(1, 2).reshape(-1, WINDOW * WINDOW, self.heads, channels // self.heads)
        return x.transpose(1, 2)

    @staticmethod
    def _image(x: Tensor, channels: int, height: int, width: int) -> Tensor:
        x = x.reshape(height // WINDOW, width // WINDOW, WINDOW, WINDOW * channels).transpose(1, 2)
        return x.reshape(1, height, width, channels).permute(0, 3, 1, 2)


class CleanFusion(SelectiveFusion):
    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        scores = self.shares((one + other).mean(dim=(2, 3), keepdim=True))
        width = one.shape[1]
        share = torch.sigmoid(scores[:, :width] - scores[:, width:])
        return other + (one - other) * share


class CleanUp(Up):
    def bake(self) -> None:
        """Turns the 1x1 convolution into one over the zero-stuffed image, its bias into the weights of a channel of
        ones: behind a shuffle it has a value per place in a cell, which a convolution's bias cannot have."""
        factor, wide = self.factor, self.conv.in_channels
        bias: Tensor = self.conv.bias
        weight = torch.cat([self.conv.weight.detach().flatten(1), bias.detach()[:, None]], dim=1)
        kernel = weight.reshape(-1, factor, factor, wide + 1).flip(1, 2).permute(0, 3, 1, 2)
        self.register_buffer("kernel", kernel.contiguous())
        del self.conv

    def forward(self, x: Tensor) -> Tensor:
        step = self.factor
        stuffed = zero_stuffed(torch.cat([x, torch.ones_like(x[:, :1])], dim=1), step)
        return nn.functional.conv2d(nn.functional.pad(stuffed, (step - 1, 0, step - 1, 0)), self.kernel)


def zero_stuffed(x: Tensor, step: int) -> Tensor:
    """Puts `step - 1` zeros behind each pixel, along both axes, within rank 4."""
    _, channels, height, width = x.shape
    x = x.reshape(channels, height, width, 1)
    x = torch.cat([x, torch.zeros(channels, height, width, step - 1)], dim=3)
    x = x.reshape(channels, height, 1, width * step)
    x = torch.cat([x, torch.zeros(channels, height, step - 1, width * step)], dim=2)
    return x.reshape(1, channels, height * step, width * step)


CLEAN = {PlainNorm: CleanNorm, WindowAttention: CleanAttention, SelectiveFusion: CleanFusion, Up: CleanUp}


def cleaned(model: nn.Module, but: type[nn.Module] | None = None) -> nn.Module:
    """Rewrites a network in place, all of it but one kind of module; its weights stay what they are."""
    for module in model.modules():
        if type(module) in CLEAN and type(module) is not but:
            module.__class__ = CLEAN[type(module)]
            if isinstance(module, (CleanAttention, CleanUp)):
                module.bake()
    return model


def clean() -> Case:
    return cleaned(Restoration().eval()), _image()


def one_mean() -> Case:
    """Clean but for the norms, which take one mean over 1.5 million elements."""
    return cleaned(Restoration().eval(), but=PlainNorm), _image()


__all__ = ["CLEAN", "SIZE", "Block", "clean", "cleaned"]
