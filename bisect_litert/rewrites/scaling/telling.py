"""What a scaled operator says of itself."""

from __future__ import annotations

from bisect_litert.rewrites.handlers import Op
from bisect_litert.rewrites.tracing import WHY
from bisect_litert.rewrites.values import Value


def told(op: Op, result: Value) -> Value:
    """Notes on a change where a result is stored scaled."""
    if result.exponent:
        size = f"{result.true_peak:.3g}" if result.peak else "0"
        way = "times smaller" if result.exponent > 0 else "times larger"
        why = f"stored 2^{abs(result.exponent)} {way}, it reaches {size}"
        op.change(f"{op.name} is {why}", result.exponent)
        result.stored.node.meta.setdefault(WHY, why)
    return result
