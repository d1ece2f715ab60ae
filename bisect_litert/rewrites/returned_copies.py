"""Outputs that leave through a buffer of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from bisect_litert.rewrites.contract import Change, Replacement, Rewrite
from bisect_litert.rewrites.preamble import adopt
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.sources import source_of
from bisect_litert.vocabulary import Cause


class ReturnedCopies(nn.Module):
    """The same module, every tensor it returns passed through max(x, smallest number there is).

    A tensor that is an output and is read by another op too may be given the buffer of an operand; one that is two
    outputs, or an input that is returned as it is, leaves one buffer unwritten. A copy has a buffer of its own. x + 0,
    x * 1 and x.clone() are no copies: a converter leaves them out. max(x, smallest) changes no number either, and it
    stays. Each output has a smallest number of its own, a digit beside the last one's: equal ops would be made one.

    Limits: one op more for each tensor returned; NaN may not stay NaN on a GPU.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        adopt(self, original)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the original's forward."""
        leaves, form = tree_flatten(super().forward(*args, **kwargs))
        return tree_unflatten([self.copied(leaf, number) for number, leaf in enumerate(leaves)], form)

    @staticmethod
    def copied(x: Any, number: int) -> Any:
        """Returns x in a buffer of its own."""
        if not isinstance(x, torch.Tensor) or x.dtype == torch.bool or x.is_complex():
            return x
        if not x.is_floating_point():
            return x.clamp(min=torch.iinfo(x.dtype).min + number)
        kind = torch.finfo(x.dtype)
        return x.clamp(min=kind.min * (1.0 - number * kind.eps))


def propose(region: Region) -> Iterator[Replacement]:
    """Fits any module that returns tensors."""
    yield Replacement(
        "ReturnedCopies",
        "from typing import Any\n\nfrom torch.utils._pytree import tree_flatten, tree_unflatten\n\n"
        + source_of(ReturnedCopies),
        changes=(Change(region.class_name, "", "every tensor it returns is a copy"),),
    )


REWRITE = Rewrite(
    name="returned-copies",
    title="outputs that leave through a copy",
    causes=(Cause.ALIASED_OUTPUT, Cause.UNWRITTEN_OUTPUT, Cause.CONVERSION),
    symptom="a returned sum equals one of its addends; an output is zero or garbage while all else is right",
    why="an output shares its buffer with an operand, with another output or with an input",
    rewrite="x.clamp(min=torch.finfo(x.dtype).min), which no converter leaves out",
    limits="one op for each output; NaN may not stay NaN",
    propose=propose,
    upstream="google-ai-edge/LiteRT#8599",
)
