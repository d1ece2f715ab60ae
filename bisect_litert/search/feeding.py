"""What healed blocks' readers are given in place of what the blocks compute, and what can be given at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bisect_litert.graphs.emulation import Rounding, round_array
from bisect_litert.measuring.evaluation import TappedGraph, heal
from bisect_litert.measuring.metrics import compare, out_of_line
from bisect_litert.search.blame import Investigation


class Feeding:
    """Which tensors each block writes, and what others read of its inside past its end, as the converter has it where
    it moves factors or joins slices.

    Args:
        case: What there is to work with.
    """

    def __init__(self, case: Investigation) -> None:
        self._case = case
        self._regions: dict[str, list[int]] = {}
        for tap in case.taps:
            if tap.tensor >= 0:
                self._regions.setdefault(tap.block, []).append(tap.tensor)
        self._walls = [t for own in self._regions.values() for t in own]
        self._entangled = case.original.shared_insides(self._regions, self._walls)

    def values(self, healed: Collection[str]) -> dict[str, np.ndarray]:
        """Returns what healed blocks are given, by tap; a tensor is healed under every name it has, since a view or a
        dropout behind a culprit hands on the same one."""
        case = self._case
        own = {t.tensor for t in case.taps if t.block in healed and t.tensor >= 0}
        return {t.key: case.truth.taps[t.key] for t in case.taps if t.tensor in own}

    def graph(self, healed: Collection[str], converted: Collection[str]) -> TappedGraph | None:
        """Returns the graph in which what reads healed blocks is given the true values; None where nothing does.

        Args:
            healed: The blocks.
            converted: Those of them whose inside the CPU has wrong, too.
        """
        case = self._case
        given = {}
        for tap in case.taps:
            if tap.block in healed and tap.tensor >= 0 and tap.layout is not None:
                given[tap.tensor] = tap.layout.from_torch(
                    case.truth.taps[tap.key], case.original.tensors[tap.tensor].shape
                )
        # What others read of a healed block's inside is given to them, too; the block itself is still seen.
        within: dict[int, frozenset[int]] = {}
        for others in self._entangled.values():
            for owner in others.keys() & set(healed):
                ops = case.original.inside(self._regions[owner], self._walls)
                made = frozenset(t for op in ops for t in op.outputs)
                within |= {t: made for t in others[owner] if owner not in converted and self.fits_truly(t)}
        return heal(case.base, given | {t: case.values[t] for t in within}, within)

    def written(self, block: str) -> Sequence[int]:
        """Returns a block's taps."""
        return self._regions.get(block, ())

    def reads(self, block: str) -> frozenset[int]:
        """Returns the taps and graph inputs that a block follows from."""
        return self._case.original.sources(self.written(block), self._walls)

    def insides_read(self, block: str) -> Mapping[str, frozenset[int]]:
        """Returns what a block reads of other blocks' insides, by block."""
        return self._entangled.get(block, {})

    def fits(self, tensor: int) -> bool:
        """Whether fp16 can hold a tensor's true value."""
        value = self._case.values.get(tensor)
        if value is None or value.dtype != np.float32:
            return True
        held = compare(reference=value, target=round_array(value, Rounding.HALF))
        return not out_of_line(held, self._case.settings.output_limit)

    def fits_truly(self, tensor: int) -> bool:
        """Whether the CPU's value of a tensor is known, and fp16 can hold it."""
        value = self._case.values.get(tensor)
        return value is not None and value.dtype == np.float32 and self.fits(tensor)

    def dead_end(self, block: str) -> bool:
        """Whether nothing but taps reads a block's outputs, or its inside: what follows was computed another way.

        The graph that ships has no such tensor. A second conversion has, since it was asked for it, and the converter
        may still have moved the factor that makes it into the next block's weights.
        """
        graph, own = self._case.original, self.written(block)
        ends = {port.tensor for port in graph.outputs}
        read = any(t in ends or graph.consumers.get(t) for t in own)
        return bool(own) and not read and not any(block in others for others in self._entangled.values())
