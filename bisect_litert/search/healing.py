"""Heal and continue: find what is wrong, give what reads it torch's own value, look again, until the rest runs clean.

A first fault can hide a second (zeros overflow nothing) and can make one up (garbage overflows everything). So what
follows a suspect is believed only at healed inputs, and what shows only there is called hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisect_litert.devices.jobs import NOT_RUN, JobResult
from bisect_litert.measuring import passing
from bisect_litert.measuring.evaluation import CPU, GPU, GPU_FP32, HALF, ROUNDING, TappedGraph
from bisect_litert.measuring.metrics import out_of_line, true_infinities
from bisect_litert.measuring.readings import OUTPUT, Errors, Runs, build, measure
from bisect_litert.record import Culprit
from bisect_litert.search.blame import Blamer, Investigation, void
from bisect_litert.search.culprits import (
    Reading,
    Upstream,
    asks_for_fp32,
    faulty,
    find_faults,
    hints_at_range,
    quietly_wrong,
)
from bisect_litert.search.feeding import Feeding
from bisect_litert.search.outputs import Outputs
from bisect_litert.search.standing import Found, Standing
from bisect_litert.verdicts import diagnosis
from bisect_litert.vocabulary import Cause, RunName

MAX_ROUNDS = 8


def investigate(case: Investigation) -> Found:
    """Runs rounds of heal and continue and returns culprits in data flow order."""
    return _Rounds(case).run()


class _Rounds:
    def __init__(self, case: Investigation) -> None:
        self.case, self.found, self.standing = case, Found(), Standing()
        self.outputs = Outputs(case, self.found, self.standing)
        self.feeding = Feeding(case)
        self.blamer = Blamer(case)

    def run(self) -> Found:
        case, found = self.case, self.found
        graph, results, healed = case.base, case.first, set[str]()
        for number in range(MAX_ROUNDS):
            self._round(number, graph, results, healed)
            targets = (self.standing.guilty | set(self.standing.suspects)) - {OUTPUT}
            if targets <= healed:
                break
            healed = targets
            further = self.feeding.graph(healed, self._converted())
            if further is None:  # nothing but outputs lies behind them
                found.healed_right = True
                break
            graph = further
            kinds = [CPU, HALF, ROUNDING, *([GPU] if case.target == GPU else [])]
            given = self.feeding.values(healed)
            results = passing.run(
                case.evaluator,
                graph,
                kinds,
                f"-healed{number + 1}",
                [case.target],
                case.measured,
                lambda values, given=given: measure(values, case.truth, case.force, given),  # type: ignore[misc]
            )
            found.results += [result.without_tensors() for result in results.values()]
            lost = results[case.target]
            if not lost.ok or void(case.evaluator.values(lost, graph)):
                why = lost.detail or "it writes nothing"
                what = "is not known yet" if lost.status == NOT_RUN else "does not run alone"
                found.notes.append(f"What lies behind {', '.join(sorted(healed))} {what}: {why}.")
                break
        else:
            found.notes.append(f"Stopped after {MAX_ROUNDS} rounds of healing; there may be more culprits.")
        self.outputs.explain_repaired()
        order = {block: i for i, block in enumerate(dict.fromkeys([t.block for t in case.taps]))}
        found.culprits = sorted(self.standing.confirmed.values(), key=lambda c: order.get(c.block, len(order)))
        found.lost = list(self.standing.pending.values())
        found.unsettled = frozenset(self.standing.suspects)
        return found

    def _round(self, number: int, graph: TappedGraph, results: dict[str, JobResult], healed: set[str]) -> None:
        """Measures one graph, with the fp32 control if something is left to explain, and believes what can be."""
        case, found = self.case, self.found
        readings, runs = self._read(graph, results, healed)
        if number == 0:
            self._tell_first(readings)
        known = set(self.standing.confirmed) | self.standing.cleared
        wrong = any(r.block not in known and faulty(r, case.settings) for r in readings)
        curious = {r.block for r in readings if asks_for_fp32(r, case.settings)} - known - self.standing.answered
        if (wrong or curious or self.outputs.off(readings)) and case.target == GPU:
            control = case.evaluator.run(graph, [GPU_FP32], f"-healed{number}" if number else "")
            found.results += [result.without_tensors() for result in control.values()]
            results.update(control)
            readings, runs = self._read(graph, results, healed)
            self.standing.answered |= curious
        if number == 0:
            found.readings = readings
            self._keep(runs)
        self._confirm(readings, number, healed, graph)
        if not self.standing.suspects and self.standing.guilty <= healed:
            self.outputs.explain(readings, number, graph)

    def _tell_first(self, readings: Sequence[Reading]) -> None:
        settings = self.case.settings
        first = next((r for r in readings if not r.output and faulty(r, settings)), None)
        # Of a run that wrote nothing no block tells anything.
        if first is not None and not void(self.found.values.get(self.case.target)):
            self.case.say(diagnosis.first_look(first, settings, self.case.target))

    # -- measuring -----------------------------------------------------------------------------------------------------

    def _read(self, graph: TappedGraph, results: dict[str, JobResult], healed: set[str]) -> tuple[list[Reading], Runs]:
        case = self.case
        given = self.feeding.values(healed)
        errors: dict[str, Errors] = {}
        for kind in (CPU, HALF, ROUNDING, GPU, GPU_FP32):
            if kind not in results or not results[kind].ok:
                continue
            job = results[kind].id
            if kind == case.target and not healed:
                self.found.values[kind] = case.evaluator.values(results[kind], graph)
            if job not in case.measured:
                values = case.evaluator.values(results[kind], graph)
                case.measured[job] = measure(values, case.truth, case.force, given)
            if kind != case.target:  # nobody looks at the others again
                results[kind] = results[kind].without_tensors()
            errors[kind] = case.measured[job]
        runs = Runs(
            target=errors[case.target],
            rounding=errors.get(ROUNDING),
            half=errors.get(HALF),
            cpu=errors.get(CPU),
            fp32=errors.get(GPU_FP32),
            uncontrolled=GPU_FP32 in results and not results[GPU_FP32].ok,
        )
        # Two kinds of CPU kernels that differ say what fp32 costs, not that the file is wrong.
        judged = runs if case.judges_conversion else replace(runs, cpu=None)
        return build(case.taps, case.owners, judged, case.links, case.fp32_cost, frozenset(given), case.steps), runs

    def _keep(self, runs: Runs) -> None:
        named = {RunName.CPU: runs.cpu}
        if self.case.settings.fp32:
            named[RunName.GPU_FP32] = runs.target if self.case.target == GPU else None
        else:
            named |= {RunName.FP16: runs.half, RunName.GPU_FP32: runs.fp32}
            if self.case.target == GPU:
                named[RunName.GPU] = runs.target
        self.found.errors = {name: e for name, e in named.items() if e is not None}
        self.found.rounding = runs.rounding

    # -- judging -------------------------------------------------------------------------------------------------------

    def _confirm(self, readings: Sequence[Reading], number: int, healed: set[str], graph: TappedGraph) -> None:
        """Believes what stands behind no other suspect, or is wrong at healed inputs too; keeps the rest as
        suspects."""
        settings = self.case.settings
        wrong = find_faults(readings, settings)
        before = Upstream(readings)
        for block in [b for b in self.standing.suspects if b not in wrong]:
            if self._inputs_sound(block, before, healed, wrong):
                self.standing.cleared.add(block)
                del self.standing.suspects[block]
        for block in wrong:
            if block in self.standing.confirmed or block in self.standing.cleared:
                continue
            reading = self.blamer.worst(readings, block)
            if not self._inputs_sound(block, before, healed, wrong):
                self.standing.suspects[block] = reading
                continue
            if self._inseparable(block, number):
                self.standing.merged.add(block)
                self.standing.cleared.add(block)
                self.standing.suspects.pop(block, None)
                continue
            hidden = number > 0 and block not in self.standing.suspects
            self.standing.suspects.pop(block, None)
            self.found.scenes[block] = (reading, graph)
            seen = self.found.values.get(self.case.target)
            culprit = self.blamer.blame(reading, hidden, seen, graph, self.found.readings)
            first = self._told_already(culprit)
            if first:
                found = self.found.joined
                found[first] = (*found.get(first, ()), block)
                self.standing.merged.add(block)
                self.standing.cleared.add(block)
            elif self._harmless(culprit, reading, readings):
                self.standing.pending[block] = culprit
                self.standing.cleared.add(block)
            else:
                self.standing.confirmed[block] = culprit
        for reading in readings:
            block = reading.block
            if (
                block in self.standing.confirmed
                or block in self.standing.cleared
                or block in self.standing.suspects
                or reading.output
            ):
                continue
            # A fault in a branch that a skip path outweighs: small in the output, and no rounding either.
            if quietly_wrong(reading, settings) and self._inputs_sound(block, before, healed, wrong):
                self.found.scenes[block] = (reading, graph)
                self.standing.confirmed[block] = self.blamer.quiet_kernel(reading, number > 0)
            elif hints_at_range(reading) and self._inputs_sound(block, before, healed, wrong):
                self.found.scenes[block] = (reading, graph)
                quiet = self.blamer.hidden_overflow(reading, number > 0, graph)
                if quiet is None:
                    self.standing.cleared.add(block)
                else:
                    self.standing.confirmed[block] = quiet

    def _inputs_sound(self, block: str, before: Upstream, healed: set[str], wrong: Sequence[str]) -> bool:
        return not before.follows(block, (b for b in wrong if b not in healed and b not in self.standing.cleared))

    def _inseparable(self, block: str, number: int) -> bool:
        """Whether a block's fault may be no more than that of a culprit before it, even at healed inputs.

        It may when the block reads the culprit's inner tensors past the point where the culprit is healed, or when
        what it is given, in PyTorch's own values, does not fit into fp16 in the first place.
        """
        guilty = self.standing.guilty
        if number and block not in self.standing.suspects:
            inner = self.feeding.insides_read(block)
            right = guilty - self._converted()
            if any(o not in right or not self.feeding.fits_truly(t) for o in guilty & inner.keys() for t in inner[o]):
                return True
        shared = {t for other in guilty for t in (*self.feeding.written(other), *self.feeding.reads(other))}
        return any(t in shared and not self.feeding.fits(t) for t in self.feeding.reads(block))

    def _converted(self) -> set[str]:
        """Culprits whose inside the CPU has wrong as well."""
        return {block for block, culprit in self.standing.confirmed.items() if culprit.cause is Cause.CONVERSION}

    def _told_already(self, culprit: Culprit) -> str:
        """The culprit that leaves the range at the very op at which another block does: one fault, read past its
        end."""
        if culprit.op < 0:
            return ""
        same = (b for b, c in self.standing.confirmed.items() if (c.op, c.cause) == (culprit.op, culprit.cause))
        return next(same, "")

    def _harmless(self, culprit: Culprit, reading: Reading, readings: Sequence[Reading]) -> bool:
        """Whether a fault counts only if an output suffers.

        Lost digits do, a conversion that costs less than fp16 does, and small numbers that became zero, and numbers
        beyond 65504 that became the infinity of their sign while everything behind them stays in line, as a mask of
        -1e9 does in front of a softmax. So does all that is wrong with a tensor that only a tap reads.
        """
        local = reading.local
        if culprit.cause is Cause.PRECISION_LOSS or self.feeding.dead_end(culprit.block):
            return True
        if culprit.cause is Cause.CONVERSION:
            # Another formula for the same function; fp16 costs more.
            return reading.cpu is not None and reading.cpu.finite_agreement and reading.cpu.relative_l2 < reading.cost
        if culprit.cause is not Cause.OVERFLOW or local is None:
            return False
        if local.finite_agreement:
            return culprit.kind == "underflow"
        values = self.found.values.get(self.case.target)
        seen = values.taps.get(reading.tap) if values else None
        if seen is None or culprit.hidden:
            return False
        before = Upstream(readings)
        behind = [r for r in readings if before.follows(r.block, [reading.block])]
        return true_infinities(self.case.truth.taps[reading.tap], seen) and not any(
            out_of_line(r.cumulative, self.case.settings.output_limit) for r in behind
        )
