"""Batch norms of a network that was never trained, given the statistics of what they see."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def calibrated(model: nn.Module, images: Tensor) -> nn.Module:
    """Runs a batch through a model in train mode; without that its numbers shrink to nothing from layer to layer.

    Args:
        model: With batch norms, in any mode.
        images: One image, whose shape is taken.

    Returns:
        The model in eval mode.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(16, *images.shape[1:]))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()
