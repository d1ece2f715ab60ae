"""The PyTorch twin of a bundle: the culprit as a module of its own, converted and run as its reader will.

The run kept the culprit in several sizes (`twin.py`). The smallest one that shows the same fault is taken, by running
its script in a fresh process; where none does, the whole block goes into the bundle and is said to fail only in
context.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bisect_litert.bundles import repro_script
from bisect_litert.bundles.privacy import Scrubber
from bisect_litert.bundles.randomising import random_inputs, random_weights
from bisect_litert.bundles.reenacting import SCRIPT, run_twin
from bisect_litert.bundles.reproduction import Reproduction
from bisect_litert.bundles.shrinking import ROUNDED, prepared
from bisect_litert.programs import torch_source
from bisect_litert.programs.torch_source import Held, Scope, Twin
from bisect_litert.reports.issue import ALONE, NO_TWIN, NOT_ALONE, NOT_TRIED, TwinReport

TWIN_SCRIPT = "repro_torch.py"
WEIGHTS = "torch_weights.npz"
TEMPLATE = Path(__file__).with_name("twin_script.py")
_PLACEHOLDER = 'class Culprit(nn.Module):\n    """The module that stands here in a bundle."""\n'
NEEDS = ("torch", "litert_torch")


@dataclass(frozen=True)
class Candidate:
    """One size of the culprit, with what it reads."""

    scope: Scope
    inputs: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]


@dataclass
class Twinner:
    """Makes the twin of one culprit.

    Args:
        source: The run's folder of this culprit.
        kept: What the run says of it; cause and tolerance.
        scratch: For tries.
        scrub: Cuts names and paths.
        say: Told of each step.
    """

    source: Path
    kept: Reproduction
    scratch: Path
    scrub: Scrubber
    say: Callable[[str], None]
    tries: int = 0

    def make(self, out: Path, *, weights: bool, inputs: bool) -> TwinReport:
        """Writes the twin into `out`, beside repro.py.

        Args:
            out: The bundle's folder of the reproduction; made when missing.
            weights: Whether the model's weights may be in it.
            inputs: Likewise.
        """
        try:
            twin = Twin.load(self.source)
        except FileNotFoundError:
            return TwinReport(NO_TWIN, why="the run kept none")
        except (OSError, ValueError) as error:
            return TwinReport(NO_TWIN, why=f"what the run kept of it cannot be read ({error})")
        if not twin.scopes:
            return TwinReport(NO_TWIN, why=twin.why)
        try:
            candidates = [self._candidate(scope) for scope in twin.scopes]
        except (OSError, ValueError, KeyError) as error:
            return TwinReport(NO_TWIN, why=f"what the run kept of it cannot be read ({error})")
        report, chosen = self._smallest(candidates)
        if report.state != ALONE and not (weights and inputs):
            why = report.why or "it is right outside the model"
            return TwinReport(NO_TWIN, why=f"without weights or inputs it would prove nothing: {why}")
        report, chosen = self._without(report, chosen, weights, inputs)
        if report.state == NO_TWIN:
            return report
        self._list(chosen, report)
        self._write(chosen, out)
        return report

    def _candidate(self, scope: Scope) -> Candidate:
        weights: dict[str, np.ndarray] = {}
        if scope.weights:
            with np.load(self.source / torch_source.WEIGHTS, allow_pickle=False) as held:
                weights = {h.name: _fitting(h, held[h.name]) for h in scope.weights}
        inputs = {}
        for h in scope.inputs:
            value = _fitting(h, np.load(self.source / f"{torch_source.PREFIX}{h.name}.npy", allow_pickle=False))
            inputs[h.name] = prepared(value, self.kept.kind) if self.kept.cause in ROUNDED else value
        return Candidate(scope, inputs, weights)

    def _smallest(self, candidates: list[Candidate]) -> tuple[TwinReport, Candidate]:
        """The smallest that shows the fault; else the whole, as tried or not."""
        whole = candidates[-1]
        if not all(importlib.util.find_spec(name) for name in NEEDS):
            why = "torch and litert-torch are not installed here"
            return TwinReport(NOT_TRIED, self._what(whole), why), whole
        untested = ""
        seen: TwinReport | None = None
        for candidate in candidates:
            seen = self._try(candidate)
            if seen.state == ALONE:
                return seen, candidate
            if seen.why == repro_script.NO_GPU:
                return replace(seen, what=self._what(whole), output=""), whole
            untested = seen.why if seen.state == NOT_TRIED else ""
        assert seen is not None, "a twin has a scope"
        return seen if untested else replace(seen, state=NOT_ALONE), whole

    def _try(self, candidate: Candidate) -> TwinReport:
        self.tries += 1
        folder = self.scratch / f"twin-{self.tries}"
        folder.mkdir()
        self._write(candidate, folder)
        text, answer = run_twin(folder / TWIN_SCRIPT, self.scratch)
        result, why = str(answer.get("result", repro_script.UNTESTED)), self.scrub.text(str(answer.get("why", "")))
        self.say(f"in PyTorch, {self._what(candidate)}: {result}")
        state = {repro_script.SAME: ALONE, repro_script.UNTESTED: NOT_TRIED}.get(result, NOT_ALONE)
        return TwinReport(state, self._what(candidate), why, output=self.scrub.text(text))

    def _without(
        self, report: TwinReport, chosen: Candidate, weights: bool, inputs: bool
    ) -> tuple[TwinReport, Candidate]:
        """Puts random numbers in place of weights and inputs where that is wanted and the fault still shows."""
        for wanted, what in ((weights, "weights"), (inputs, "inputs")):
            if wanted or report.state != ALONE:
                continue
            held = chosen.weights if what == "weights" else chosen.inputs
            exact = self.kept.cause not in ROUNDED
            ways = random_weights(held) if what == "weights" else random_inputs(held, exact)
            found = None
            for how, values in ways if held else [("it holds none", {})]:
                again = replace(chosen, weights=values) if what == "weights" else replace(chosen, inputs=values)
                seen = self._try(again)
                if seen.state == ALONE:
                    found = replace(seen, weights=report.weights, inputs=report.inputs), again, how
                    break
            if found is None:
                return TwinReport(NO_TWIN, why=f"the fault does not show in it with random {what}"), chosen
            report, chosen, how = found
            report = replace(report, weights=how) if what == "weights" else replace(report, inputs=how)
        return report, chosen

    def _what(self, candidate: Candidate) -> str:
        return self.scrub.text(candidate.scope.what)

    def _list(self, chosen: Candidate, report: TwinReport) -> None:
        for kind, held, how in (("weight", chosen.weights, report.weights), ("input", chosen.inputs, report.inputs)):
            for name, value in held.items():
                origin = f"random ({how})" if how else "of the model" if kind == "weight" else "from the run"
                size = f"{list(value.shape)}, {value.nbytes} bytes"
                self.say(f"{kind} in the bundle, for PyTorch: {self.scrub.text(name)} {size}, {origin}")

    def _write(self, candidate: Candidate, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        scope = _renamed(candidate.scope, self.scrub)
        shutil.copyfile(Path(repro_script.__file__), folder / SCRIPT)
        (folder / TWIN_SCRIPT).write_text(self._script(scope), encoding="utf-8")
        if candidate.weights:
            values = candidate.weights.values()
            np.savez(folder / WEIGHTS, **{h.name: v for h, v in zip(scope.weights, values, strict=True)})  # type: ignore[arg-type]
        for h, value in zip(scope.inputs, candidate.inputs.values(), strict=True):
            np.save(folder / f"torch_{h.name}.npy", value, allow_pickle=False)

    def _script(self, scope: Scope) -> str:
        about: dict[str, str | float] = {
            "cause": self.kept.cause,
            "tolerance": self.kept.tolerance,
            "reference": self.kept.reference,
        }
        if self.kept.time_limit:
            about["time_limit"] = self.kept.time_limit
        files = json.dumps([f"torch_{h.name}.npy" for h in scope.inputs])
        changes = {
            '"""TITLE': f'"""{_plain(self.kept.cause)} in PyTorch: {_plain(scope.what)}',
            "from bisect_litert.bundles.repro_script import": "from repro import",
            'ABOUT: dict[str, Any] = {"cause": "", "tolerance": 0.0, "reference": "cpu"}': "ABOUT: dict[str, Any] = "
            + json.dumps(about),
            "INPUTS: list[str] = []": f"INPUTS: list[str] = {files}",
            'WEIGHTS = ""': f'WEIGHTS = "{WEIGHTS if scope.weights else ""}"',
            _PLACEHOLDER: torch_source.module_source(scope, f"{scope.what}, as torch.export has it."),
        }
        text = TEMPLATE.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert old in text, f"the template lost {old!r}"
            text = text.replace(old, new, 1)
        return text


def _fitting(held: Held, value: np.ndarray) -> np.ndarray:
    if value.shape != held.shape or value.dtype.name != held.dtype:
        raise ValueError(f"{held.name} is not as announced")
    return value


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _renamed(scope: Scope, scrub: Scrubber) -> Scope:
    """The scope with names that name nobody."""
    names = {h.name for h in (*scope.inputs, *scope.weights)} | {step.name for step in scope.steps}
    new: dict[str, str] = {}
    for name in sorted(names):
        cut = scrub.text(name)
        new[name] = name if cut == name else f"t{len(new)}_"

    def value(old: object) -> object:
        if isinstance(old, list):
            return [value(part) for part in old]
        return {"ref": new[old["ref"]]} if isinstance(old, dict) and "ref" in old else old

    steps = [
        replace(
            step,
            name=new[step.name],
            args=[value(arg) for arg in step.args],
            kwargs={key: value(arg) for key, arg in step.kwargs.items()},
            place=scrub.text(step.place),
        )
        for step in scope.steps
    ]
    return Scope(
        what=scrub.text(scope.what),
        steps=tuple(steps),
        inputs=tuple(replace(h, name=new[h.name]) for h in scope.inputs),
        weights=tuple(replace(h, name=new[h.name]) for h in scope.weights),
        outputs=tuple(new[name] for name in scope.outputs),
    )
