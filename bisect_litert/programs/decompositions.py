"""How normalisations come apart, so that the squares and sums inside them can be seen as the converted graph has them.

torch's core operators keep layer_norm, group_norm, var and log_softmax whole; in a .tflite file each is a chain of ops
that all store their result in fp16 on a GPU. What is one op there as well (softmax, gelu) stays whole here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def table() -> dict[Any, Callable[..., Any]]:
    """Returns a decomposition table for `ExportedProgram.run_decompositions`."""
    import torch

    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())
    found.update(
        {
            aten.native_layer_norm.default: _layer_norm,
            aten.native_group_norm.default: _group_norm,
            aten._fused_rms_norm.default: _rms_norm,
            aten._native_batch_norm_legit_no_training.default: _batch_norm,
            aten._native_batch_norm_legit.no_stats: _batch_norm_of_input,
            aten._log_softmax.default: _log_softmax,
            aten.var.correction: _var,
            aten.var_mean.correction: _var_mean,
            aten.linalg_vector_norm.default: _vector_norm,
        }
    )
    return found


def _layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    axes = [-1 - i for i in range(len(shape))]
    out, mean, scale = _normalise(x, axes, eps)
    return _affine(out, weight, bias), mean, scale


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    n: int,
    c: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    out, mean, scale = _normalise(x.reshape(n, groups, c // groups * positions), [-1], eps)
    per_channel = [1, c, *[1] * (x.dim() - 2)]
    out = _affine(
        out.reshape(x.shape),
        None if weight is None else weight.reshape(per_channel),
        None if bias is None else bias.reshape(per_channel),
    )
    return out, mean.reshape(n, groups), scale.reshape(n, groups)


def _rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    axes = [-1 - i for i in range(len(shape))]
    small = torch.finfo(x.dtype).eps if eps is None else eps
    scale = torch.rsqrt((x * x).mean(axes, keepdim=True) + small)
    return _affine(x * scale, weight, None), scale


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale and shift per channel, which is what the converter folds the running statistics into."""
    import torch

    del momentum
    per_channel = [1, -1, *[1] * (x.dim() - 2)]
    scale = torch.rsqrt(var + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias
    return x * scale.reshape(per_channel) + shift.reshape(per_channel), x.new_empty(0), x.new_empty(0)


def _batch_norm_of_input(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What instance_norm becomes: per channel, by the input's own mean and variance."""
    del training, momentum
    out, mean, scale = _normalise(x, [0, *range(2, x.dim())], eps)
    per_channel = [1, -1, *[1] * (x.dim() - 2)]
    out = _affine(
        out,
        None if weight is None else weight.reshape(per_channel),
        None if bias is None else bias.reshape(per_channel),
    )
    return out, mean.flatten(), scale.flatten()


def _log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    del half_to_float
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _var(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> torch.Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    axes = list(dim) if dim else list(range(x.dim()))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    total = (centred * centred).sum(axes, keepdim=keepdim)
    return total / max(0.0, count - (1 if correction is None else correction)), mean if keepdim else mean.sum(axes)


def _vector_norm(
    x: torch.Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    import torch

    if float(ord) != 2.0:
        return NotImplemented
    if dtype is not None:
        x = x.to(dtype)
    return torch.sqrt((x * x).sum(list(dim) if dim else list(range(x.dim())), keepdim=keepdim))


def _normalise(x: torch.Tensor, axes: list[int], eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    scale = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    return centred * scale, mean, scale


def _affine(x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias
