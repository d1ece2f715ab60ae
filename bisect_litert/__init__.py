"""Names the first block where a PyTorch model's GPU result in LiteRT goes wrong, and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bisect_litert.entrances import bisect

__all__ = ["bisect"]


def __getattr__(name: str) -> Any:
    if name == "bisect":
        from bisect_litert.entrances import bisect  # torch and the converter are loaded only by those who use it

        return bisect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
