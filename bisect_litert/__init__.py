"""Names the first block where a PyTorch model's GPU result in LiteRT goes wrong, and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bisect_litert.entrances import bisect, report

__all__ = ["bisect", "report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from bisect_litert import entrances  # torch and the converter are loaded only by those who use it

        return getattr(entrances, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
