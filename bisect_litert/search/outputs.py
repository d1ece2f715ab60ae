"""Why a model output is out of line though every fault is healed: a block loses digits, or rounding adds up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisect_litert.measuring.evaluation import TappedGraph
from bisect_litert.measuring.metrics import FP16_UNIT, compare_by_scale, out_of_line
from bisect_litert.record import Culprit
from bisect_litert.search.blame import Investigation
from bisect_litert.search.culprits import Reading, Upstream, amplification, find_loss
from bisect_litert.search.standing import Found, Standing
from bisect_litert.verdicts import advice, diagnosis
from bisect_litert.vocabulary import Cause


class Outputs:
    """Explains the model's outputs.

    Args:
        case: What there is to work with.
        found: Takes what is found out.
        standing: Where blocks stand; blocks that lose digits become culprits in it.
    """

    def __init__(self, case: Investigation, found: Found, standing: Standing) -> None:
        self._case, self._found, self._standing = case, found, standing

    def off(self, readings: Sequence[Reading]) -> bool:
        """Whether an output is out of line."""
        return any(out_of_line(r.cumulative, self._case.settings.output_limit) for r in self._outputs(readings))

    def _outputs(self, readings: Sequence[Reading]) -> list[Reading]:
        """The outputs that healing can put right: a culprit's own cannot, since nothing reads it."""
        guilty = self._standing.guilty
        return [r for r in readings if r.output and r.block not in guilty]

    def explain(self, readings: Sequence[Reading], number: int, graph: TappedGraph) -> None:
        """Says what, if anything, still puts an output out of line with every fault healed.

        Args:
            readings: Of the healed graph.
            number: Of the round, from 0; what is found later than that is hidden.
            graph: What they were measured in.
        """
        if not self.off(readings):
            self._found.healed_right = number > 0
            self._found.healed = self._outcome(readings, off=False) if number else ""
            return
        if self._standing.pending:
            self._standing.confirmed.update(self._standing.pending)
            self._standing.pending.clear()
            return
        jumps, _ = find_loss(readings, self._case.settings)
        jumps = [b for b in jumps if b not in self._standing.confirmed and b not in self._standing.merged]
        for block in jumps:
            self._blame_loss(block, readings, number, graph)
        if not jumps:
            self._found.compounding = not self._standing.confirmed
            self._found.healed = self._outcome(readings, off=True) if number else ""

    def explain_repaired(self) -> None:
        """Digits lost before a fault: healing the fault with torch's value hides them, repairing it would not.

        One torch forward computes the faults and all that follows from what the target handed them. If an output is
        off then, what came before is to blame as well.
        """
        case, found = self._case, self._found
        values = found.values.get(case.target)
        hard = {b for b, c in self._standing.confirmed.items() if c.cause is not Cause.PRECISION_LOSS}
        if not hard or values is None:
            return
        before = Upstream(found.readings)
        sound = [
            r for r in found.readings if not r.output and r.block not in hard and not before.follows(r.block, hard)
        ]
        kept = {r.tap: values.taps[r.tap] for r in sound if r.tap in values.taps}
        outputs = case.force(kept, lambda *_: None).outputs
        errors = [
            compare_by_scale(reference=case.truth.outputs[label], target=value, terms=case.truth.terms.get(label, 0.0))
            for label, value in outputs.items()
            if value.dtype.kind == "f" and label in case.owners
        ]
        off = [c for c in errors if out_of_line(c, case.settings.output_limit)]
        if not off or not kept:
            return
        lossy = [r.block for r in sound if r.block in self._standing.pending]
        if lossy:
            self._standing.confirmed.update({b: self._standing.pending.pop(b) for b in dict.fromkeys(lossy)})
            return
        jumps, _ = find_loss(sound, case.settings, max(c.relative_l2 for c in off))
        for block in jumps:
            if block not in self._standing.confirmed:
                self._blame_loss(block, found.readings, 0, case.base)

    def _blame_loss(self, block: str, readings: Sequence[Reading], number: int, graph: TappedGraph) -> None:
        levels = {r.tap: r.cumulative.relative_l2 for r in readings if r.cumulative is not None and not r.healed}
        mine = [r for r in readings if r.block == block and r.cumulative is not None]
        reading = max(mine, key=lambda r: _known(amplification(r, levels)))
        before = max([FP16_UNIT, *(_known(levels.get(p, 0.0)) for p in reading.parents)])
        self._found.scenes[block] = (reading, graph)
        sentences = diagnosis.loss_evidence(reading, before, self._case.settings)
        step = advice.default(Cause.PRECISION_LOSS)
        local, ratio = reading.level, reading.ratio
        self._standing.confirmed[block] = Culprit(
            block, Cause.PRECISION_LOSS, "", sentences, step, number > 0, local=local, ratio=ratio
        )

    def _outcome(self, readings: Sequence[Reading], off: bool) -> str:
        levels = [r.cumulative.relative_l2 for r in self._outputs(readings) if r.cumulative is not None]
        if not levels or any(np.isnan(levels)):
            return ""
        worst = diagnosis.number(max(levels))
        if off:
            return f"With these healed an output is still off by {worst}, which rounding compounds to behind them."
        right = f"the rest comes out right (outputs within {worst})"
        return f"Given {self._case.reference}'s values behind these blocks, {right}."


def _known(value: float) -> float:
    return 0.0 if value != value else value
