"""The order of things: load, convert once, tap, run, measure, search, heal, judge, write.

Stages know nothing of each other; this is the one place where they meet. How it is called: entrances.py.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from bisect_litert.bundles import material
from bisect_litert.devices import machines
from bisect_litert.devices.job_queue import JobQueue
from bisect_litert.devices.jobs import JobResult
from bisect_litert.errors import BisectError, UnansweredError
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring import noise, passing, room, stopped
from bisect_litert.measuring.evaluation import (
    CPU,
    GPU,
    HALF,
    ROUNDING,
    UNTAPPED,
    Evaluator,
    Running,
    TappedGraph,
    start_untapped,
    tap_graph,
)
from bisect_litert.measuring.readings import Errors, flow, measure
from bisect_litert.record import Artefact, RunRecord, Verdict
from bisect_litert.records import run_folder
from bisect_litert.records.recording import write_record
from bisect_litert.reports.drawing import Drawer
from bisect_litert.request import BisectRequest, Interrupted, OnProgress, Progress, Stage
from bisect_litert.search.blame import Investigation
from bisect_litert.search.counterfactual import Controls
from bisect_litert.search.healing import investigate
from bisect_litert.search.inside import Tools, look_inside
from bisect_litert.search.pricing import Pricer, Scene
from bisect_litert.subjects import Located, Subject, Workplace
from bisect_litert.taps import tapping
from bisect_litert.taps.gate import Choice, choose_taps
from bisect_litert.verdicts.confidence import Circumstances
from bisect_litert.verdicts.judging import Findings, judge, log_findings, settle_death, settle_invalid, settle_taps
from bisect_litert.vocabulary import Cause, RunName

_STAND_IN = {False: "The emulated fp16 run", True: "The run on the CPU"}


class Bisection:
    """One run. Its fields are what is known so far, so that an interruption loses nothing."""

    def __init__(
        self, subject: Subject, request: BisectRequest, on_progress: OnProgress, drawer: Drawer | None = None
    ) -> None:
        self.subject, self.request, self.tell, self.drawer = subject, request, on_progress, drawer
        self.settings = request.settings()
        self.known = Findings(
            subject.label,
            subject.describe_inputs(),
            self.settings,
            subject.reference,
            datetime.now(timezone.utc),
            time.monotonic(),
        )
        self.known.device = machines.device_name(request)
        self.ran: tuple[Evaluator, TappedGraph, Mapping[str, JobResult]] | None = None
        """The runs on the CPU, from when they have ended."""
        self.measured: dict[str, Errors] = {}
        """What they and others came to, by job, from when that is known."""

    def run(self) -> RunRecord:
        """Does it, and leaves the run folder; raises as `entrances.run_bisection` does."""
        self.known.truth = self.subject.check(self._stage)
        if self.known.truth is not None:
            self.known.add_run("torch", time.monotonic() - self.known.clock)
        self.folder = run_folder.create(self.request.out, run_folder.label_of(self.request.model), self.request.force)
        self.known.folder = self.folder
        work = Path(tempfile.mkdtemp(prefix="bisect-litert-"))
        try:
            with JobQueue(machines.open_runner(work, self.request)) as runner:
                runner.warm_up()
                self._work(Workplace(runner, work, self.folder / "logs", self._stage, self._note))
                self.known.notes += runner.notes
        except KeyboardInterrupt:
            self._keep_finished()
            decided = "the culprits found by then are listed" if self.known.found.culprits else "nothing was decided"
            self.known.verdict = Verdict(
                Cause.CANNOT_TEST, False, f"Interrupted during {self.known.last_stage}; {decided}.", "Run it again."
            )
            raise Interrupted(self._write()) from None
        except BisectError as error:
            self.known.verdict = Verdict(Cause.CANNOT_TEST, False, error.message, error.hint)
            self._write()
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return self._write()

    def _keep_finished(self) -> None:
        """Holds the runs that had ended against torch, where nothing was searched yet."""
        if self.ran is None or self.known.truth is None or self.known.found.errors:
            return
        evaluator, graph, results = self.ran
        exact, choice = self.request.fp32, self.known.choice
        ended = {RunName.CPU: (results[CPU], graph)}
        if not exact:
            ended[RunName.FP16] = results[HALF], graph
        if choice is not None and choice.gpu:
            ended[RunName.GPU_FP32 if exact else RunName.GPU] = choice.gpu[GPU], choice.graph
        self.known.found.errors = stopped.errors_of(ended, evaluator, self.known.truth, self.measured)
        self.known.notes += stopped.furthest(self.known.found.errors, self.known.taps)

    def _write(self) -> RunRecord:
        return write_record(self.known, self.folder, self.drawer)

    def _stage(self, name: str) -> Stage:
        self.known.last_stage = name
        return Stage(self.tell, name)

    def _note(self, name: str, seconds: float, detail: str) -> None:
        self.known.add_run(name, seconds, detail=detail)
        if detail:
            self.tell(Progress(name, state="info", detail=detail))

    def _say_first(self, found: str) -> None:
        """Says which block is wrong at first sight, unless the taps or the GPU made it all up."""
        choice, seen = self.known.choice, log_findings(self.known)
        if (choice is None or choice.agrees) and not (seen and seen[0].validation_errors):
            self.tell(Progress("search", found=found))

    def _work(self, place: Workplace) -> None:
        plain = self.known.plain = self.subject.graph(place)
        self.known.artefact = Artefact.of(plain.file)
        self.known.definition = Artefact.of(self.subject.path)
        room.check(place.folder, plain, self.known.truth, self.request.tap_memory)
        inputs = self.subject.feed(plain)
        early = None
        if not self.request.no_gpu:  # it runs while the taps are looked for
            early = start_untapped(place.runner, plain, inputs, place.folder, self.request.fp32)
        with self._stage("find taps"):
            found = self.subject.locate(plain, inputs, place)
        if found.output_limit > self.settings.output_limit:
            self.settings = self.known.settings = replace(self.settings, output_limit=found.output_limit)
            self.known.notes.append(
                f"The outputs are quantised so coarsely that only an error above {found.output_limit:.2g} counts."
            )
        self.known.truth, self.known.taps = found.truth, list(found.tapping.taps)
        self.known.notes += [*self.subject.notes, *found.tapping.notes]
        self.known.add_results(found.results)
        self._measure(plain, inputs, found, place, early)

    def _measure(
        self,
        plain: Graph,
        inputs: Mapping[str, np.ndarray],
        shown: Located,
        place: Workplace,
        early: Running | None,
    ) -> None:
        """Runs the graph in every way, searches, looks inside, and judges."""
        tapped, bare = shown.tapping, TappedGraph(plain, {}, shown.outputs)
        evaluator = self._evaluator(inputs, shown, place)
        if early is not None:
            evaluator.adopt(bare, GPU, UNTAPPED, early)
        located = [t.tensor for t in tapped.taps if t.tensor >= 0]
        graph = evaluator.laid_out(tap_graph(tapped.graph, located, tapped.outputs))
        cpu = self._run_cpu(evaluator, graph, shown)
        at = {port.name: port.tensor for port in tapped.graph.outputs}
        outputs = {label: at[name] for label, name in tapped.outputs.items()}
        truth = self.known.truth = shown.held(outputs, evaluator.values(cpu[ROUNDING], graph))
        self.known.notes += noise.sentences(truth.noise)
        self.ran = evaluator, graph, cpu
        choice = None
        if not self.request.no_gpu:
            choice = self._run_gpu(evaluator, tapped, bare, graph, truth)
            graph = choice.graph
            if choice.gpu and not choice.agrees and tapped.shipped is not None:
                # What a second conversion no longer folds may leave the range in between, or come right.
                left, said = shown.with_taps_of(tapped.shipped)
                self.known.taps = list(tapped.shipped.taps)
                self.known.notes.append(said)
                self._measure(plain, inputs, left, place, None)
                return
        self.known.target = GPU if choice is not None and choice.tested else HALF
        if choice is not None and not choice.tested:
            self.known.notes.append(f"{choice.why_not} {_STAND_IN[self.request.fp32]} stands in for the GPU.")
            if cpu[HALF].ok and not cpu[HALF].outputs:  # it was compared and let go, and now it is to be looked into
                cpu.update(evaluator.run(graph, [HALF]))
        self.known.links = flow(tapped.graph, tapped.taps, outputs)
        self.known.owners, self.known.graph = tapping.owners(tapped, truth, outputs), tapped.graph
        controls = self._controls(evaluator, tapped, plain, truth)
        if choice is not None and choice.failure is not None and controls is not None:
            with self._stage("find what does not run"):
                settle_death(self.known, controls)
        if choice is None or choice.gpu or not choice.tested:
            cpu.update(choice.gpu if choice else {})
            self._search(evaluator, graph, shown, cpu, controls)
        elif choice.failure is None and controls is not None:
            with self._stage("search without taps"):
                settle_taps(self.known, controls)
        self.known.verdict = judge(self.known)
        if material.to_keep(self.known):
            with self._stage("keep reproductions"):
                material.keep(self.folder, self.known, tapped, self.subject.keep_twin)

    def _evaluator(self, inputs: Mapping[str, np.ndarray], shown: Located, place: Workplace) -> Evaluator:
        return Evaluator(
            place.runner,
            place.folder,
            inputs,
            shown.tapping.taps,
            {k: v.shape for k, v in shown.truth.outputs.items()},
            shown.tapping.tame,
            lambda job: self.tell(Progress(f"run {job}", state="info")),
            self.request.tap_memory,
            self.request.fp32,
            shown.layouts,
        )

    def _run_cpu(self, evaluator: Evaluator, graph: TappedGraph, shown: Located) -> dict[str, JobResult]:
        """Runs the tapped graph on the CPU, as it is and rounded, while the GPU is at work on it."""
        with self._stage("run cpu, fp16"):
            evaluator.ahead(graph, [] if evaluator.passes(graph) else [CPU])
            evaluator.ahead(graph, [] if self.request.no_gpu else [GPU])
            self.measured = {}
            # What noise is held against is known only when all of these have run.
            whole = [CPU, HALF, ROUNDING] if shown.noise else [HALF] if self.request.no_gpu else []
            results = passing.run(
                evaluator,
                graph,
                [CPU, HALF, ROUNDING],
                "",
                whole,
                self.measured,
                lambda values: measure(values, shown.truth, self.subject.force),
            )
        self.known.add_results(results.values())
        return results

    def _run_gpu(
        self, evaluator: Evaluator, tapped: tapping.Tapping, bare: TappedGraph, graph: TappedGraph, truth: noise.Held
    ) -> Choice:
        """Runs the graph on the GPU with and without taps, and chooses the taps to believe.

        Raises:
            UnansweredError: The tapped graph was not run yet.
        """
        with self._stage("run gpu"):
            choice = choose_taps(evaluator, tapped, bare, graph, truth, self.settings.output_limit)
        self.known.add_results(choice.results)
        self.known.choice = choice
        if choice.unanswered:
            raise UnansweredError(
                f"The tapped graph has no result: {choice.why_not}",
                hint="Run the entries of the export on the device, bring the results back, and ingest them.",
            )
        return choice

    def _controls(
        self, evaluator: Evaluator, tapped: tapping.Tapping, plain: Graph, truth: noise.Held
    ) -> Controls | None:
        """What runs the graph as it ships with ops kept off the GPU; None where nothing runs on one."""
        choice = self.known.choice
        if self.known.target != GPU or choice is None:
            return None
        shipped = TappedGraph(tapped.graph, {}, tapped.outputs)
        untapped = choice.results[0] if tapped.graph is plain else None
        right = tapped.right(truth.taps)
        return Controls(evaluator, shipped, truth, right, switches=self.request.switches, known=untapped)

    def _search(
        self,
        evaluator: Evaluator,
        graph: TappedGraph,
        shown: Located,
        first: dict[str, JobResult],
        controls: Controls | None,
    ) -> None:
        """Finds the culprits, and looks into each."""
        tapped, truth = shown.tapping, self.known.truth
        assert truth is not None, "the reference was run first"
        case = Investigation(
            evaluator=evaluator,
            base=graph,
            original=tapped.graph,
            taps=tapped.taps,
            owners=self.known.owners,
            links=self.known.links,
            truth=truth,
            force=self.subject.force,
            fp32_cost=shown.cost,
            steps=shown.steps,
            layouts=shown.layouts,
            reference=self.subject.reference,
            judges_conversion=self.subject.judges_conversion,
            other_weights=shown.other_weights,
            values=tapped.values,
            settings=self.settings,
            target=self.known.target,
            say=self._say_first,
            first=first,
            measured=self.measured,
        )
        with self._stage("search"):
            self.known.found = investigate(case)
        self.known.add_results(self.known.found.results)
        if controls is not None and not settle_invalid(self.known, controls):
            settle_taps(self.known, controls)
        if self.known.found.culprits:
            with self._stage("look inside"):
                self._look_inside(case, controls)

    def _look_inside(self, case: Investigation, controls: Controls | None) -> None:
        """Drives each culprit down to its op and line, and proves it by keeping it off the GPU."""
        found, classes = self.known.found, self.subject.classes()
        choice = self.known.choice
        tools = Tools(
            pricer=Pricer(case),
            sources=self.subject.sources(case.original, case.values),
            controls=controls,
            graph=case.original,
            blocks=list(dict.fromkeys(t.block for t in case.taps)),
            classes=classes,
            around=Circumstances(
                gpu=case.target == GPU,
                taps_agree=choice is not None and choice.agrees,
                repeats=choice.repeats if choice is not None else None,
                healed_right=found.healed_right,
                has_fp32=choice is None or not any("fp32" in result.lacks for result in choice.results),
            ),
            settings=self.settings,
            say=lambda block: self.tell(Progress("look inside", state="info", detail=block)),
            joined=found.joined,
        )
        scenes = {
            c.block: Scene(c.block, c.cause, c.kind, *found.scenes[c.block])
            for c in found.culprits
            if c.block in found.scenes
        }
        found.culprits = look_inside(found.culprits, scenes, tools)
