"""What an operation that does not convert is in PyTorch's terms, and what to write instead."""

from __future__ import annotations

import re

_WAYS = (
    (
        r"(?i)\b(?:mhlo|stablehlo)\.convolution\b",
        "It comes of a convolution with settings that the converter has no form for. Of a ConvTranspose with "
        "output_padding: give it padding=0 and slice the result.",
    ),
    (
        r"STABLEHLO_SORT|comparator block argument",
        "sort, argsort, median, quantile and a topk whose indices are not used become a sort. torch.topk has a kernel "
        "when both its results are used.",
    ),
    (
        r"STABLEHLO_SCATTER|stablehlo\.scatter",
        "scatter_add, index_add and F.fold become a scatter. Where the indices are fixed, a product with a matrix of 0 "
        "and 1 adds up the same.",
    ),
    (
        r"aten\._assert_async",
        "F.one_hot checks its input by it. Compare instead: (x[..., None] == torch.arange(n)).float().",
    ),
    (
        r"aten\._embedding_bag",
        "nn.EmbeddingBag becomes it: nn.Embedding, and the mean or sum over each bag, is the same.",
    ),
    (
        r"(?i)\bcomplex(?:64|128)\b|view_as_complex",
        "Complex tensors do not convert: compute real and imaginary parts apart, a rotary embedding by cos "
        "and sin, for instance.",
    ),
    (
        r"ConcretizationTypeError|Abstract tracer value encountered",
        "The size of its result depends on the values, which a .tflite file cannot hold: use torch.where or a mask, "
        "or take a fixed number with torch.topk.",
    ),
)


def way_around(said: str) -> str:
    """Returns what to write instead of an operation, in a sentence or two; empty when nothing is known.

    Args:
        said: Its name, or what the converter or the runtime says of it.
    """
    return next((way for pattern, way in _WAYS if re.search(pattern, said)), "")
