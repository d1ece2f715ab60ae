"""Which blocks a plot shows: a range that is moved and zoomed within the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace

LEAST = 3
"""Blocks that are shown at least."""


@dataclass(frozen=True, slots=True)
class PlotWindow:
    """A range of blocks; block n reaches from n - 0.5 to n + 0.5."""

    blocks: int
    """How many there are; at least 1."""
    low: float
    high: float

    @classmethod
    def whole(cls, blocks: int) -> PlotWindow:
        """Returns the range of all blocks."""
        blocks = max(blocks, 1)
        return cls(blocks, -0.5, blocks - 0.5)

    @property
    def width(self) -> float:
        """How many blocks it shows."""
        return self.high - self.low

    def moved(self, by: float) -> PlotWindow:
        """Returns it that many blocks further on, as far as there are any."""
        by = max(-0.5 - self.low, min(self.blocks - 0.5 - self.high, by))
        return replace(self, low=self.low + by, high=self.high + by)

    def zoomed(self, factor: float, around: float) -> PlotWindow | None:
        """Returns it narrowed (factor < 1) or widened, all of it for 0; None where it would be too narrow.

        Args:
            factor: New width over the present one.
            around: The block that keeps its place.
        """
        middle = max(self.low, min(self.high, around))
        low, high = middle - (middle - self.low) * factor, middle + (self.high - middle) * factor
        if factor == 0 or high - low >= self.blocks:
            return self.whole(self.blocks)
        if high - low < LEAST:
            return None
        return replace(self, low=low, high=high).moved(0)
