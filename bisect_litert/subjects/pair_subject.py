"""A PyTorch model and the .tflite file that ships: that very file is bisected against PyTorch, nothing is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bisect_litert.errors import ConversionError, InputsError
from bisect_litert.files import port_matching, tflite_file, weight_matching
from bisect_litert.files.port_matching import Feed
from bisect_litert.graphs.dequantised import has_integers, is_hybrid
from bisect_litert.graphs.graph import Graph
from bisect_litert.measuring.evaluation import float_outputs
from bisect_litert.measuring.metrics import compare
from bisect_litert.measuring.readings import OtherWeights, Tap
from bisect_litert.models import eager
from bisect_litert.models.preparation import LoadedModel, named_inputs
from bisect_litert.request import BisectRequest
from bisect_litert.subjects import Located, Workplace, followed
from bisect_litert.subjects.torch_subject import TorchSubject, differences
from bisect_litert.subjects.whole_run import run_whole
from bisect_litert.taps import tapping

CLOSE = 1e-3
"""Relative L2 difference that other kernels, folded constants and another order of summation explain."""
CLOSE_QUANTISED = 0.2
"""The same with weights or activations that were rounded to a few bits."""
NEAR, NEAR_QUANTISED = 10.0, 1.5
"""Times the closest difference up to which a tensor may still be the partner, if its name says so."""
STEPS = 3.0
"""Times what narrow weights cost an output on the CPU: below that an error is their doing."""


class PairSubject(TorchSubject):
    """A module with its inputs, and the file that is said to compute it.

    Args:
        loaded: The module, fit to test.
        request: Names the file and its signature.

    Raises:
        BisectError: The file is not usable.
    """

    def __init__(self, loaded: LoadedModel, request: BisectRequest) -> None:
        super().__init__(loaded, request)
        assert request.tflite is not None
        shipped = tflite_file.read(request.tflite, request.signature)
        self._file, self._graph = request.tflite.name, shipped.graph
        self.notes = (*loaded.notes, *shipped.notes)
        self._narrow = has_integers(self._graph) or is_hybrid(self._graph) or _has_half_weights(self._graph)
        self.judges_conversion = not self._narrow
        self._weights = weight_matching.Weights()

    def graph(self, place: Workplace) -> Graph:
        """Returns the file's graph, and finds out how to feed it.

        Raises:
            InputsError: The model's inputs do not fit the file's.
            ConversionError: None of the file's outputs fits the model's, or it was made of another checkpoint.
        """
        graph = self._graph
        with place.stage("match file"):
            found = port_matching.feeds(graph, _given(self.loaded))
            if not found:
                raise _unfit(graph, self.loaded, self._file)
            self._choose(found, place)
            self._weigh()
        return graph

    def feed(self, graph: Graph) -> dict[str, np.ndarray]:
        """Returns the inputs by signature name, in the file's order of axes."""
        del graph
        return dict(self._feed.values)

    def locate(self, graph: Graph, inputs: Mapping[str, np.ndarray], place: Workplace) -> Located:
        """Finds the blocks' outputs among the file's tensors; those that are not there have no partner."""
        truth, values = self.truth, self._values
        cost, tolerance, noise = self._fp32_costs()
        close = CLOSE_QUANTISED if self._narrow else CLOSE
        outputs = {label: match.port for label, match in self._matches.items()}
        taps = tapping.locate(
            graph,
            truth.points,
            truth.taps,
            values,
            {key: max(close, tolerance.get(key, 0.0)) for key in truth.taps},
            returned=self._returned(graph, outputs),
            loosest=max(close, tapping.LOOSEST),
            near=NEAR_QUANTISED if self._narrow else NEAR,
        )
        if self.judges_conversion:
            taps = followed.follow(graph, taps, values, self._torch.force, self._unproved())
        return Located(
            tapping=tapping.Tapping(graph, taps, outputs, values, (*self._said(), *_partners(taps))),
            truth=truth,
            outputs=outputs,
            layouts={label: match.layout for label, match in self._matches.items()},
            cost=cost,
            noise=noise,
            steps=self._cost_of_narrow_weights(taps, values) if self._narrow else {},
            output_limit=self._limit() if self._narrow else 0.0,
            other_weights=OtherWeights(tuple(self._weights.other), self._weights.sentence(self._file)),
        )

    def _choose(self, found: Sequence[Feed], place: Workplace) -> None:
        """Takes the first way of feeding the file that gives the model's outputs; else the one that gives the most."""
        best: tuple[int, float] | None = None
        tolerance = CLOSE_QUANTISED if self._narrow else tapping.LOOSEST
        for number, feed in enumerate(found):
            values, _ = run_whole(
                place.runner, self._graph, feed.values, place.folder, f"values-{number}", self.request.tap_memory
            )
            matches = port_matching.match_outputs(self._graph, self.truth.outputs, values, tolerance)
            proved = [m.error for m in matches.values() if m.proved]
            rank = (-len(proved), sum(proved))
            if best is None or rank < best:
                best, self._feed, self._values, self._matches = rank, feed, values, matches
            if len(proved) == len(self.truth.outputs):
                break
        if not self._matches:
            sizes = ", ".join(f"{label} {list(v.shape)}" for label, v in self.truth.outputs.items())
            raise ConversionError(
                f"None of the outputs of {self._file} has the size of one that the model returns ({sizes}).",
                hint="Give the model and the inputs that the file was made of.",
            )

    def _weigh(self) -> None:
        """Looks whether the file holds the model's weights, where its outputs do not prove it."""
        if all(match.proved for match in self._matches.values()):
            return
        loaded, used = self.loaded, _called(self.loaded, self.request.seed)
        held = [
            (name, p.detach().cpu().float().numpy())
            for name, p in loaded.module.named_parameters()
            if p.dtype.is_floating_point and name.rpartition(".")[0] in used
        ]
        self._weights = weight_matching.match_weights(self._graph, held)
        # Where the conversion is not judged nobody would say so; what shares no weight is not to be compared at all.
        if self._weights.other and (self._narrow or not self._weights.same):
            raise ConversionError(
                self._weights.sentence(self._file),
                hint="Convert this checkpoint again, or give the checkpoint that the file was made of.",
            )

    def _returned(self, graph: Graph, outputs: Mapping[str, str]) -> dict[int, np.ndarray]:
        proved = {label: n for label, n in outputs.items() if (m := self._matches[label]).proved and m.layout.plain}
        return super()._returned(graph, proved)

    def _said(self) -> list[str]:
        """What was found out about inputs and outputs, in sentences."""
        said = []
        unproved = [label for label, match in self._matches.items() if not match.proved]
        for port, (name, layout) in self._feed.layouts.items():
            if not layout.plain:
                order = ",".join(map(str, layout.permutation))
                how = "proved by the outputs" if not unproved else "the only order or the likeliest that fits"
                said.append(f"The file takes {port} in another order of axes than the model's {name}: {order} ({how}).")
        absent = [label for label in self.truth.outputs if label not in self._matches]
        if absent:
            said.append(f"The file has no output for the model's {', '.join(absent)}.")
        if unproved:
            said.append(
                f"On the CPU the file does not give the model's {', '.join(unproved)}; paired by name, size or order."
            )
        if self._weights.other:
            said.append(self._weights.sentence(self._file))
        if self._narrow:
            said.append(
                "Weights or activations of the file are rounded to fewer bits than PyTorch's. What that costs is not "
                "held against it, so its conversion is not judged."
            )
        return said

    def _cost_of_narrow_weights(self, taps: Sequence[Tap], values: Mapping[int, np.ndarray]) -> dict[str, float]:
        """What the file's own rounding costs on the CPU, locally, by tap key and output label."""
        seen = {t.key: t.layout.to_torch(values[t.tensor]) for t in taps if t.tensor >= 0 and t.layout is not None}
        forced = self._torch.force(seen)
        at = {port.name: port.tensor for port in self._graph.outputs}
        out = {label: m.layout.to_torch(values[at[m.port]]) for label, m in self._matches.items()}
        return {**differences(forced.taps, seen), **differences(forced.outputs, out)}

    def _unproved(self) -> dict[str, np.ndarray]:
        """What the file returns in place of the model's outputs, in PyTorch's layout, by label."""
        at = {port.name: port.tensor for port in self._graph.outputs}
        return {
            label: match.layout.to_torch(self._values[at[match.port]])
            for label, match in self._matches.items()
            if not match.proved and at[match.port] in self._values
        }

    def _limit(self) -> float:
        at = float_outputs(self._graph, {label: match.port for label, match in self._matches.items()})
        errors = [
            compare(
                reference=self.truth.outputs[label], target=self._matches[label].layout.to_torch(self._values[t])
            ).relative_l2
            for label, t in at.items()
            if self._matches[label].proved
        ]
        return STEPS * max([0.0, *(e for e in errors if np.isfinite(e))])


def _called(loaded: LoadedModel, seed: int) -> set[str]:
    """The modules whose forward is called: a file has no reason to hold the weights of others."""
    copy, called = eager.copy_module(loaded.module), set[str]()
    for name, module in copy.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
    eager.call(copy, loaded.args, loaded.kwargs, seed=seed)
    return called


def _given(loaded: LoadedModel) -> list[tuple[str, np.ndarray]]:
    return [(n, t.detach().cpu().numpy()) for n, t in named_inputs(loaded.module, loaded.args, loaded.kwargs)]


def _unfit(graph: Graph, loaded: LoadedModel, file: str) -> InputsError:
    ports = [(port.name, graph.tensors[port.tensor]) for port in graph.inputs]
    takes = ", ".join(f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in ports)
    has = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in _given(loaded))
    return InputsError(
        f"{file} takes {takes or 'nothing'}, and the model's inputs are {has or 'none'}.",
        hint="Give inputs of the sizes that the file was converted for.",
    )


def _partners(taps: Sequence[Tap]) -> list[str]:
    """Which blocks have no partner in the file, in a sentence."""
    absent = [t.key for t in taps if t.tensor < 0 and t.key in tapping.missing(taps)]
    if not absent:
        return []
    some = ", ".join(absent[:8]) + (" ..." if len(absent) > 8 else "")
    return [f"No tensor of the file holds what these blocks return, fused or folded as they are: {some}."]


def _has_half_weights(graph: Graph) -> bool:
    return any(t.constant and t.dtype == "FLOAT16" for t in graph.tensors)
