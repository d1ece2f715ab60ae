"""A .tflite file alone: its own blocks, held against LiteRT's CPU kernels. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bisect_litert.files import file_blocks, file_inputs, tflite_file
from bisect_litert.files.file_reference import Computed, FileReference
from bisect_litert.files.op_paths import Paths
from bisect_litert.graphs.dequantised import has_integers, with_real_weights
from bisect_litert.graphs.graph import Graph, Op
from bisect_litert.measuring.pieces import OnTensor
from bisect_litert.programs.torch_source import Twin
from bisect_litert.record import Culprit, InputInfo
from bisect_litert.request import BisectRequest, BlockLine
from bisect_litert.search.sources import Place
from bisect_litert.subjects import Located, Stage, Workplace
from bisect_litert.subjects.whole_run import run_whole
from bisect_litert.taps.tapping import Tapping

STEPS = 3.0
"""Times what rounding costs a quantised output: below that an error is one of its steps, not a fault."""
APART = 1e-2
"""Relative L2 difference between two CPU implementations that is worth saying."""
HYBRID = (
    "The weights are quantised and the activations are not. LiteRT's CPU would round those to 8 bits as well; the "
    "reference computes with the weights' real values, as GPUs do."
)
INTEGERS = (
    "Activations are stored as integers. They are compared as the real numbers they stand for, and what is expected of "
    "the GPU is the same graph computed with floats and rounded to their steps."
)
NO_FLOATS = "No block of the file writes a float tensor that another one reads, so only its outputs are compared."


class FileSubject:
    """A file with inputs.

    Args:
        request: The file, its signature, inputs and blocks.

    Raises:
        BisectError: The file, the inputs or the blocks are not usable.
    """

    reference = "LiteRT CPU"
    judges_conversion = False
    path: Path | None = None

    def __init__(self, request: BisectRequest) -> None:
        path = Path(request.model)
        self._budget = request.tap_memory
        self.label = path.name
        shipped = tflite_file.read(path, request.signature)
        self._graph = shipped.graph
        self._inputs, drawn = file_inputs.make_inputs(self._graph, request.inputs, request.seed, request.int_high)
        self._blocks = file_blocks.read_blocks(self._graph)
        self._selected = self._blocks.select(request.blocks)
        self.notes = (*shipped.notes, *drawn)

    def describe_inputs(self) -> list[InputInfo]:
        """Returns name, shape and range of every input tensor."""
        found = []
        for name, value in self._inputs.items():
            low, high = (float(value.min()), float(value.max())) if value.size else (float("nan"), float("nan"))
            found.append(InputInfo(name, tuple(value.shape), str(value.dtype), low, high))
        return found

    def check(self, stage: Stage) -> None:
        """Checks nothing: what can be checked without running the file was when it was read."""
        del stage

    def graph(self, place: Workplace) -> Graph:
        """Returns the file's graph."""
        del place
        return self._graph

    def feed(self, graph: Graph) -> dict[str, np.ndarray]:
        """Returns the inputs by signature name."""
        del graph
        return dict(self._inputs)

    def locate(self, graph: Graph, inputs: Mapping[str, np.ndarray], place: Workplace) -> Located:
        """Runs the file on the CPU and reads its blocks' outputs."""
        outputs = {port.name: port.name for port in graph.outputs}
        exact = with_real_weights(graph)
        values, whole = run_whole(place.runner, exact, inputs, place.folder, "reference", self._budget)
        taps = file_blocks.taps_of(graph, self._selected)
        self._reference = FileReference(exact, taps, outputs, inputs, place.runner, place.folder)
        truth = self._reference.run(values)
        steps, rounded = self._reference.steps(), self._reference.rounded_outputs()
        notes = [] if taps else [NO_FLOATS]
        cost = self._reference.fp32_cost()
        notes += _disagreements(cost, steps)
        notes += [HYBRID] if exact is not graph else []
        notes += [INTEGERS] if has_integers(graph) else []
        limit = STEPS * max([0.0, *rounded.values(), *(steps.get(label, 0.0) for label in outputs)])
        return Located(
            tapping=Tapping(graph, taps, outputs, values, tuple(notes)),
            truth=truth,
            outputs=outputs,
            cost={} if has_integers(graph) else cost,  # there they differ by steps, not by how fp32 rounds
            steps={key: max(steps.get(key, 0.0), cost.get(key, 0.0)) for key in {*steps, *cost}},
            output_limit=limit,
            results=(whole,),
        )

    def move_to(self, place: Workplace) -> None:
        """Lets the reference run there."""
        self._reference.move_to(place.runner, place.folder)

    def force(self, values: Mapping[str, np.ndarray], look: OnTensor | None = None) -> Computed:
        """Runs the file on the CPU with these values in place of the blocks' outputs."""
        computed = self._reference.force(values)
        if look is not None:
            for key, value in computed.taps.items():
                look(key, value)
        return computed

    def classes(self) -> dict[str, str]:
        """Returns class names by module path, as far as the tensor names tell."""
        return {block.name: block.class_name for block in self._blocks.blocks if block.class_name}

    def sources(self, graph: Graph, values: Mapping[int, np.ndarray]) -> NamedSources:
        """Returns modules; a file has no lines."""
        del graph, values
        return NamedSources(self._blocks.paths)

    def keep_twin(self, folder: Path, culprit: Culprit, tapped: Tapping, blocks: Sequence[str]) -> None:
        """Writes that there is none."""
        del culprit, tapped, blocks
        Twin(why="the model came as a .tflite file, without PyTorch").save(folder)


def _disagreements(cost: Mapping[str, float], steps: Mapping[str, float]) -> list[str]:
    """Where LiteRT's own CPU kernels differ by more than any rounding, in a sentence."""
    apart = [f"{key} ({error:.2g})" for key, error in cost.items() if error > max(APART, STEPS * steps.get(key, 0.0))]
    if not apart:
        return []
    some = ", ".join(apart[:5]) + (" ..." if len(apart) > 5 else "")
    return [
        f"LiteRT's own CPU kernels, the plain ones and XNNPACK's, differ at {some}; so much is held against no GPU."
    ]


class NamedSources:
    """Tells an op's module from tensor names, and no line.

    Args:
        paths: The file's modules; None when names tell nothing.
    """

    def __init__(self, paths: Paths | None) -> None:
        self._paths = paths

    def places(self, ops: Sequence[Op], block: str) -> dict[int, Place]:
        """Finds the module of each op."""
        del block
        return {op.index: Place(self._paths.node_of(op.index).name if self._paths else "") for op in ops}

    def first_lost(self, block: str) -> Place | None:
        """Returns None: without PyTorch nothing tells what the conversion changed."""
        del block
        return None


def list_blocks(path: Path, signature: str, patterns: Sequence[str]) -> tuple[BlockLine, ...]:
    """Lists what `--blocks` can select in a file, without running it."""
    found = file_blocks.read_blocks(tflite_file.read(path, signature).graph)
    return file_blocks.list_lines(found, found.select(patterns))
