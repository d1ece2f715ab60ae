"""A PyTorch model: converted once, tapped in the graph that comes of it, held against eager PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.bundles import twin
from bisect_litert.bundles.reproduction import WHOLE
from bisect_litert.errors import ConversionError, UnfitReferenceError
from bisect_litert.graphs.conversion import input_names
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.stored_conversion import Converter
from bisect_litert.measuring.evaluation import float_outputs
from bisect_litert.measuring.metrics import compare
from bisect_litert.measuring.noise import Fp32Error, Noise, find_noise, fp32_errors
from bisect_litert.measuring.pieces import OnTensor, let_go
from bisect_litert.models import blocks as block_stage
from bisect_litert.models.dependence import constant_returns
from bisect_litert.models.plain import returning_tensors
from bisect_litert.models.preparation import LoadedModel, describe_inputs
from bisect_litert.models.reference import Forward, TorchReference, tapped_module
from bisect_litert.models.shelf import Shelf
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.node_sets import Suspect
from bisect_litert.record import Culprit, InputInfo
from bisect_litert.request import BisectRequest
from bisect_litert.search.sources import Sources
from bisect_litert.subjects import Located, Stage, Workplace
from bisect_litert.subjects.whole_run import run_whole
from bisect_litert.taps import tapping

_READABLE = (
    "FLOAT32",
    "INT32",
    "INT64",
    "BOOL",
    "INT8",
    "UINT8",
    "INT16",
    "FLOAT16",
    "UINT32",
    "UINT16",
)


class TorchSubject:
    """A module with its inputs.

    Args:
        loaded: The module, fit to test.
        request: Which blocks, seed, and where to tap.
    """

    reference = "PyTorch"
    judges_conversion = True

    def __init__(self, loaded: LoadedModel, request: BisectRequest) -> None:
        self.loaded, self.request = loaded, request
        self.label, self.notes = loaded.label, loaded.notes
        self.path = loaded.path
        self._sources: Sources | None = None
        self._converter = Converter.of_user(request.cache)
        self._module = loaded.module
        """What is converted: the model, returning nothing but tensors."""
        self._program: Any = None
        """The model as torch.export sees it, if the conversion came by it."""

    def describe_inputs(self) -> list[InputInfo]:
        """Returns name, shape and range of every input tensor."""
        return describe_inputs(self.loaded)

    def check(self, stage: Stage) -> Forward:
        """Runs the model in PyTorch, twice.

        Raises:
            BisectError: It cannot serve as a reference, or a pattern matches no block.
        """
        loaded = self.loaded
        selected = block_stage.select(loaded.module, self.request.blocks)
        shelf = Shelf(self.request.tap_memory)
        self._torch = TorchReference(loaded.module, loaded.args, loaded.kwargs, selected, self.request.seed, shelf)
        with stage("torch"):
            truth = self.truth = self._torch.check()
            wobbly = self._torch.repeatable()
            if wobbly:
                hint = "Make the model deterministic (eval mode, fixed noise) to have something to compare with."
                raise UnfitReferenceError(wobbly, hint=hint)
        if truth.outputs and not any(value.size for value in truth.outputs.values()):
            raise UnfitReferenceError(
                "Nothing that the model returns on these inputs holds an element.",
                hint="Give inputs with at least one row.",
            )
        if not truth.only_tensors:
            self._module = returning_tensors(loaded.module)
        return truth

    def graph(self, place: Workplace) -> Graph:
        """Converts the model, or takes the conversion of the same program from the cache."""
        with place.stage("convert"):
            graph = self._convert(self._module, place, "model.tflite", "convert")
        half = next((t.name for t in graph.tensors if t.dtype == "BFLOAT16"), None)
        if half is not None:
            raise ConversionError(
                f"the model computes in bfloat16 inside, which LiteRT has no kernels for ({half}).",
                hint="Leave torch.autocast and .bfloat16() out of forward.",
            )
        return graph

    def _convert(self, module: Any, place: Workplace, file: str, name: str) -> Graph:
        kept = self.request.conversions / file if self.request.conversions else None
        if kept is not None and kept.is_file():
            return Graph.read(kept)
        made = self._converter.convert(
            module, self.loaded.args, self.loaded.kwargs, place.folder / file, place.logs / f"{name}.log"
        )
        if kept is not None:
            shutil.copyfile(place.folder / file, kept)
        place.note(name, made.seconds, "from the cache" if made.stored else "")
        if module is self._module:
            self._program = made.program
        return made.graph

    def feed(self, graph: Graph) -> dict[str, np.ndarray]:
        """Returns the inputs by signature name."""
        return input_names(graph, self.loaded.args, self.loaded.kwargs)

    def locate(self, graph: Graph, inputs: Mapping[str, np.ndarray], place: Workplace) -> Located:
        """Finds the blocks' outputs among the graph's tensors, and converts again for those that are not there."""
        cost, tolerance, noise = self._fp32_costs()
        outputs = self._name_outputs(graph)
        return Located(self._tap(graph, inputs, place, tolerance, outputs), self.truth, outputs, cost, noise=noise)

    def move_to(self, place: Workplace) -> None:
        """Changes nothing: PyTorch runs in this process."""
        del place

    def force(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Forward:
        """Runs PyTorch with these values in place of the blocks' outputs."""
        return self._torch.force(values, look)

    def classes(self) -> dict[str, str]:
        """Returns class names by module path."""
        return {name: type(module).__name__ for name, module in self.loaded.module.named_modules() if name}

    def sources(self, graph: Graph, values: Mapping[int, np.ndarray]) -> Sources:
        """Matches ops with the operators that torch.export sees."""
        loaded = self.loaded
        program = loaded.program if loaded.program is not None else self._program
        if self._sources is None or self._sources.graph is not graph:  # one a run: it exports the model when asked
            self._sources = Sources(
                lambda: ExportedModel(self._module, loaded.args, loaded.kwargs, decompose=False, program=program),
                graph,
                values,
                list(self.classes()),
            )
        return self._sources

    def keep_twin(self, folder: Path, culprit: Culprit, tapped: tapping.Tapping, blocks: Sequence[str]) -> None:
        """Writes the operators that torch.export sees, where the culprit is."""
        sources = self.sources(tapped.graph, tapped.values)
        kind = next((t.class_name for t in tapped.taps if t.block == culprit.block), "")
        whole = culprit.cause in WHOLE
        suspect = Suspect(culprit.block, kind, culprit.module, sources.node_of(culprit), whole)
        twin.keep(folder, suspect, sources.model(), blocks)

    def _fp32_costs(self) -> tuple[dict[str, float], dict[str, float], dict[str, Noise]]:
        """What fp32 costs torch itself: locally, per tap and output, and cumulatively, as how close a partner has to
        be; and what it leaves no digit of."""
        truth = self.truth
        local: dict[str, float] = {}
        whole: dict[str, Fp32Error] = {}

        def look(key: str, wide: np.ndarray) -> None:
            if key in truth.taps:
                whole.update(fp32_errors({key: wide}, {key: truth.taps[key]}))

        def look_forced(key: str, wide: np.ndarray) -> None:
            if key in truth.taps:
                noise = whole[key].noise if key in whole else None
                terms = {key: noise.terms} if noise else {}
                local.update(differences({key: wide}, {key: truth.taps[key]}, terms))

        double = self._torch.run64(look)
        forced = self._torch.force64(truth.taps, look_forced) if double else None
        self._torch.forget64()
        if double is None or forced is None:
            return {}, {}, {}
        noise = {key: error.noise for key, error in whole.items() if error.noise}
        noise |= find_noise(double.outputs, truth.outputs)
        terms = {key: found.terms for key, found in noise.items()}
        local |= differences(forced.outputs, truth.outputs, terms)
        return local, {k: 100 * error.relative_l2 for k, error in whole.items() if isfinite(error.relative_l2)}, noise

    def _tap(
        self,
        plain: Graph,
        inputs: Mapping[str, np.ndarray],
        place: Workplace,
        tolerance: Mapping[str, float],
        outputs: dict[str, str],
    ) -> tapping.Tapping:
        truth, labels = self.truth, list(self.truth.outputs)
        budget = self.request.tap_memory
        values, _ = run_whole(place.runner, plain, inputs, place.folder, "values", budget)
        taps = tapping.locate(
            plain, truth.points, truth.taps, values, tolerance, returned=self._returned(plain, outputs)
        )
        constant = self._constants() if tapping.missing(taps) else frozenset()
        taps = tapping.as_constants(taps, constant)
        shipped = tapping.Tapping(plain, taps, outputs, values)
        absent = tapping.missing(taps)
        if self.request.tap == "reexport":
            absent = [p.key for p in truth.points if truth.taps[p.key].dtype == np.float32 and truth.taps[p.key].size]
        notes: list[str] = []
        if absent:
            again = tapping.reexport(
                lambda keys: tapped_module(self._torch, keys),
                absent,
                labels,
                lambda module: self._convert(module, place, "tapped.tflite", "reexport"),
            )
            if again is None:
                some = ", ".join(absent[:5])
                notes.append(f"{len(absent)} block outputs are not in the graph and could not be added to it: {some}.")
            else:
                graph, known, outputs = again
                values, _ = run_whole(place.runner, graph, inputs, place.folder, "values-again", budget)
                taps = tapping.locate(
                    graph, truth.points, truth.taps, values, tolerance, known, self._returned(graph, outputs)
                )
                taps = tapping.as_constants(taps, constant)
                return tapping.Tapping(graph, taps, outputs, values, shipped=shipped)
        return replace(shipped, notes=tuple(notes))

    def _constants(self) -> frozenset[str]:
        """Keys of the taps that follow from no input, and so are computed when the model is converted."""
        loaded = self.loaded
        found = constant_returns(loaded.module, loaded.args, loaded.kwargs, self._torch.blocks, self.request.seed)
        return frozenset(p.key for p in self.truth.points if (p.block, p.call, p.label) in found)

    def _returned(self, graph: Graph, outputs: Mapping[str, str]) -> dict[int, np.ndarray]:
        """What the model returns in PyTorch, by output tensor of the graph; an output that is an input is left out."""
        inputs = {port.tensor for port in graph.inputs}
        at = float_outputs(graph, outputs)
        return {t: self.truth.outputs[label] for label, t in at.items() if t in graph.computed and t not in inputs}

    def _name_outputs(self, graph: Graph) -> dict[str, str]:
        labels, ports = list(self.truth.outputs), graph.outputs
        if len(labels) != len(ports):
            raise ConversionError(
                f"the converted graph has {len(ports)} outputs where the model returns {len(labels)} tensors.",
                hint="Return each tensor once, as a tensor.",
            )
        for label, port in zip(labels, ports, strict=True):
            got, wanted = graph.tensors[port.tensor], self.truth.outputs[label]
            if wanted.dtype.kind == "c":
                raise ConversionError(
                    f"output {label} holds complex numbers, and LiteRT returns real ones only.",
                    hint="Return real and imaginary parts apart, for instance by torch.view_as_real.",
                )
            if got.size != wanted.size or got.dtype not in _READABLE:
                raise ConversionError(
                    f"output {label} is {got.dtype} {list(got.shape)} in the converted graph and "
                    f"{wanted.dtype} {list(wanted.shape)} in PyTorch.",
                    hint="Return real tensors of a fixed size.",
                )
        return {label: port.name for label, port in zip(labels, ports, strict=True)}


def differences(
    reference: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray], terms: Mapping[str, float] = {}
) -> dict[str, float]:
    """Returns the relative L2 difference of float tensors of one name and shape, relative to `terms` where the
    reference is noise; one that is not defined is left out, as when nothing is finite or the reference is zero."""
    found = {}
    for key, value in target.items():
        if value.dtype.kind == "f" and key in reference and reference[key].shape == value.shape:
            error = compare(reference=reference[key], target=value, terms=terms.get(key, 0.0)).relative_l2
            let_go(reference[key], value)
            if np.isfinite(error):
                found[key] = error
    return found
