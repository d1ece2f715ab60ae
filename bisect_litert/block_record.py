"""The nouns of one block: its tensors, its errors in every run, what fp16's range means to it, and its ops."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from bisect_litert.vocabulary import Cause, Mark, Residency, RunName, TapOrigin


@dataclass(frozen=True, slots=True)
class Comparison:
    """A target tensor against a reference tensor of the same shape; counts are elements."""

    elements: int
    relative_l2: float
    """||target - reference|| / ||reference||, over elements finite on both sides; inf where the reference is all zero
    and the target is not; nan when nothing is left to compare. Of integers and booleans, which stand for themselves,
    the share that differs."""
    correlation: float
    """Pearson correlation over elements finite on both sides; nan when either side is constant."""
    snr_db: float
    """10 * log10(reference power / error power), in dB; inf when equal, nan when nothing is left to compare."""
    scale: float
    """Least-squares factor: target ~ scale * reference; nan for an all-zero reference."""
    max_abs_error: float
    reference_peak: float
    """Largest finite |reference|."""
    target_peak: float
    nonfinite: int
    """NaN or infinite in the target."""
    new_nonfinite: int
    """NaN or infinite in the target where the reference is finite, or something else non-finite where it is not."""
    reference_nonfinite: int
    zeros: int
    """Exactly zero in the target."""
    new_zeros: int
    """Exactly zero in the target where |reference| is above a tenth of its root mean square."""
    saturated: int
    """|target| at the fp16 limit 65504, or infinite, where |reference| is not."""
    unwritten: int = 0
    """Elements that still hold the sentinel the output buffer was filled with."""
    terms: float = 0.0
    """Where the reference is fp32 noise, the 2-norm of the terms that cancel, which the error is relative to; else 0.
    Correlation and scale are nan then and zeros are not new."""

    @property
    def finite_agreement(self) -> bool:
        """Whether every element the reference has finite is finite in the target."""
        return self.new_nonfinite == 0 and self.unwritten == 0


@dataclass(frozen=True, slots=True)
class TapInfo:
    """One tensor of a block's output."""

    label: str
    """Path inside the block's return value: "" for a plain tensor, "[1]", ".hidden", ["key"]."""
    origin: TapOrigin
    tensor: str
    """Name of the tensor in the .tflite file; empty when there is none."""
    shape: tuple[int, ...]
    """As PyTorch returns it."""
    dtype: str
    layout: str = ""
    """How the .tflite tensor maps to PyTorch's: "" as is, "reshape", or "permute 0,2,3,1"."""
    reference_file: str = ""
    """The reference tensor as .npy, relative to the run folder; empty when it was not kept."""
    target_file: str = ""
    """The target's tensor likewise, in PyTorch's shape."""


@dataclass(frozen=True, slots=True)
class RunErrors:
    """One run at one block: worst tensor of the block's output by relative L2 error."""

    cumulative: Comparison | None
    """Against torch."""
    local: Comparison | None
    """Against torch computing this block from the run's own tensors (teacher forcing)."""


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """What fp16's range means to one block, from torch alone (docs/prediction.md); each place is "op, model.py:41"."""

    peak: float
    """Largest finite |value| of its operators' results."""
    peak_at: str
    headroom: float
    """65504 / peak."""
    largest_sum: float
    """Largest sum of magnitudes that one operator adds up; 0 when nothing is summed."""
    sum_at: str
    largest_squares: float
    """The same for sums of squares."""
    squares_at: str
    smallest: float
    """Smallest |value| above 0 that fp16 holds as 0; nan when there is none."""
    smallest_at: str
    half: float
    """Relative L2 error of its outputs with every result rounded to fp16; inf when they are not finite."""
    significand: float
    """The same with fp16's 11 significant bits and no end of the range."""
    leaves_range: bool


@dataclass(frozen=True, slots=True)
class BlockResult:
    """One call of one block, in execution order."""

    name: str
    """Module path, with "@2" for a second call; "(output)" for what follows the last block."""
    module: str
    class_name: str
    call: int
    order: int
    taps: tuple[TapInfo, ...]
    ops: int
    """How many ops of the graph lie between this block's inputs and its outputs."""
    residency: Residency
    mark: Mark
    cause: Cause
    """Set on culprits and notes; none otherwise."""
    errors: dict[RunName, RunErrors]
    expected: float
    """Local relative L2 error that rounding every tensor to fp16's 11 significant bits costs; nan if unknown."""
    allowance: float
    """Factor on `expected` for fp16 accumulation over the longest sum in the block, at least 1."""
    ratio: float
    """Target's local relative L2 error / max(expected, half an fp16 unit); nan if unknown."""
    amplification: float
    """Cumulative error after the block / largest cumulative error of its inputs (or half an fp16 unit); nan if
    unknown."""
    ranges: RangeInfo | None = None
    """What fp16's range means to it, from torch alone; None when it was not predicted."""

    @property
    def reference_peak(self) -> float:
        """Largest finite |reference| over the block's outputs, nan when untapped."""
        known = [e.cumulative for e in self.errors.values() if e.cumulative]
        return known[0].reference_peak if known else nan


@dataclass(frozen=True, slots=True)
class OpResult:
    """One op of a culprit block, at the target's own inputs."""

    index: int
    """Position in the .tflite file's main graph."""
    type: str
    """TensorFlow Lite's name, "SQUARED_DIFFERENCE"."""
    tensor: str
    """Name of the tensor it writes."""
    shape: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    """Shapes of what it reads, constants included."""
    module: str
    """Deepest module it comes from; empty when the name does not tell."""
    source: str
    """"model.py:41", the user's line it comes from; empty when unknown."""
    code: str
    """That line's text."""
    local: Comparison | None
    """The target's result against the CPU's at the target's own operands; None when it was not read."""
    reference_peak: float
    """Largest finite |value| in fp32."""
    accumulated: float
    """Bound on the partial sums inside it, 0 for an op that sums nothing."""
    contribution: float
    """Relative L2 error of the block's output when only this op's result is rounded to 11 bits; nan when not
    measured."""
    mark: Mark
