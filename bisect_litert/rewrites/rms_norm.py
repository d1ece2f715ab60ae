"""RMSNorm whose squares leave fp16's range."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from bisect_litert.models import eager
from bisect_litert.rewrites.contract import Change, Replacement, Rewrite
from bisect_litert.rewrites.normalising import normalised
from bisect_litert.rewrites.preamble import adopt
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.sources import source_of
from bisect_litert.vocabulary import Cause

ALIKE = 4e-6
"""How close a module's values have to be to those of an RMSNorm, relative to the largest; fp32 rounds to 1e-7."""


class ScaledRMSNorm(nn.Module):
    """RMSNorm that squares values of at most 1.

    With any s > 0, RMSNorm's x / sqrt(mean(x^2) + eps) equals (x/s) / sqrt(mean((x/s)^2) + eps/s^2). `normalised`
    takes the largest |x| of each row for s, so nothing above 1 is squared and nothing is multiplied back.

    Limits: the input itself has to fit fp16 (65504). A row in which one value is more than sqrt(N) * 2^11 times all
    others loses those others, as fp16 does anyway.
    """

    def __init__(
        self, original: nn.Module, *, axes: int = 1, eps: float | None = None, gain: str = "", shift: float = 0.0
    ) -> None:
        super().__init__()
        adopt(self, original)
        self.normalised_axes = tuple(range(-axes, 0))
        self.added = eps
        self.gain, self.gain_shift = gain, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last axes of x."""
        eps = torch.finfo(x.dtype).eps if self.added is None else self.added
        y = normalised(x, self.normalised_axes, eps)
        if not self.gain:
            return y
        gain = getattr(self, self.gain)
        return y * (gain + self.gain_shift if self.gain_shift else gain)


def propose(region: Region) -> Iterator[Replacement]:
    """Fits torch.nn.RMSNorm, and every module that proves to compute what an RMSNorm computes."""
    module = region.module
    if isinstance(module, nn.RMSNorm) and type(module).forward is nn.RMSNorm.forward:
        gain = "weight" if module.weight is not None else ""
        yield _replacement(region, {"axes": len(module.normalized_shape), "eps": module.eps, "gain": gain})
        return
    found = recognised(region)
    if found is not None:
        yield _replacement(region, found)


def recognised(region: Region) -> dict[str, object] | None:
    """Returns the settings with which an RMSNorm over the last axis computes what a module computes, None if none do.

    It is asked, not read: constant rows show its gain, smaller ones its epsilon, and random rows of many sizes, with
    the calls of the model, prove the guess.
    """
    module, calls = region.module, region.calls
    if not calls or any(len(c.args) != 1 or c.kwargs or not _is_float(c.args[0]) for c in calls):
        return None
    if any(p.ndim != 1 for p in module.parameters()):
        return None
    try:
        return _guessed(module, [call.args[0] for call in calls])
    except Exception:  # a module that is no RMSNorm may fail on rows it was not made for
        return None


def _guessed(module: nn.Module, inputs: list[torch.Tensor]) -> dict[str, object] | None:
    like = inputs[0]

    def ask(x: torch.Tensor) -> torch.Tensor:
        returned = eager.call(module, (x,), {})
        if not _is_float(returned) or returned.shape != x.shape:
            raise ValueError("it returns something else than it is given")
        return returned.detach()  # type: ignore[no-any-return]

    width = like.shape[-1]
    gain = ask(torch.full_like(like, 1e6)).reshape(-1, width)
    if not torch.equal(gain, gain[:1].expand_as(gain)):
        return None
    guess = _gain_of(module, gain[0])
    if guess is None:
        return None
    eps = _epsilon_of(module, lambda t: ask(torch.full_like(like, t)).reshape(-1, width)[0] / gain[0])
    if eps is None:
        return None
    settings: dict[str, object] = {"eps": eps, **guess}
    candidate = ScaledRMSNorm(module, **settings)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(like.shape, generator=generator).to(like.dtype)
    probes = [noise * size for size in (1e-4, 1e-2, 1.0, 1e3)] + [noise.abs() + 3.0, *inputs]
    with torch.no_grad():
        for x in probes:
            wanted = ask(x)
            scale = wanted.abs().max().clamp(min=1e-30)
            if not bool(((candidate(x) - wanted).abs().max() / scale) <= ALIKE):
                return None
    return settings


def _gain_of(module: nn.Module, gain: torch.Tensor) -> dict[str, object] | None:
    """The parameter that is the gain, plain or as what is added to 1."""
    for name, parameter in module.named_parameters():
        if parameter.shape != gain.shape or "." in name:
            continue
        for shift in (0.0, 1.0):
            if torch.allclose(parameter.detach() + shift, gain, rtol=ALIKE, atol=1e-6):
                return {"gain": name, "shift": shift} if shift else {"gain": name}
    if torch.allclose(gain, torch.ones_like(gain), rtol=ALIKE, atol=0.0) and not list(module.parameters()):
        return {"gain": ""}
    return None


def _epsilon_of(module: nn.Module, answer: object) -> float | None:
    """Finds eps from t / sqrt(t^2 + eps) at the t where that is about 0.7; an attribute of that size is it exactly."""
    for octave in range(0, 44):
        t = 2.0**-octave
        values = answer(t)  # type: ignore[operator]
        share = float(values[torch.isfinite(values)].median())
        if not 0 < share <= 1.001:
            return None
        if share < 0.9:
            seen = t * t * (1.0 / share**2 - 1.0)
            known = [v for v in vars(module).values() if isinstance(v, float) and abs(v - seen) < 1e-3 * seen]
            return known[0] if known else float(f"{seen:.3g}")
    return 0.0


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _replacement(region: Region, arguments: dict[str, object]) -> Replacement:
    return Replacement(
        "ScaledRMSNorm",
        source_of(normalised, ScaledRMSNorm),
        arguments,
        changes=(Change(region.class_name, "", "rows are divided by their largest value before they are squared"),),
    )


REWRITE = Rewrite(
    name="rms-norm",
    title="RMSNorm of rows divided by their largest value",
    causes=(Cause.OVERFLOW,),
    symptom="zeros after an RMSNorm whose input has values above about 256",
    why="the squares, or their mean, pass 65504; rsqrt(inf) is 0",
    rewrite="divide each row by its largest magnitude; the factor cancels in the normalised result",
    limits="the input itself has to fit fp16",
    propose=propose,
    upstream="google-ai-edge/litert-torch#718",
)
