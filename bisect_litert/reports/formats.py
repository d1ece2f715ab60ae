"""How numbers, shapes and commands are written, the same way in every report."""

from __future__ import annotations

import re
import shlex
from math import floor, isfinite, isnan, log10, nan

from bisect_litert.block_record import BlockResult, Comparison
from bisect_litert.record import InputInfo, RunRecord
from bisect_litert.vocabulary import LITERT_CPU, Mark, Residency, RunName

SYMBOLS = {
    Mark.OK: "✓",
    Mark.CULPRIT: "✗",
    Mark.AFTER: "↓",
    Mark.NOTE: "!",
    Mark.UNTAPPED: "○",
    Mark.UNKNOWN: "?",
}
PLACES = {
    Residency.GPU: "GPU",
    Residency.CPU: "CPU",
    Residency.MIXED: "both",
    Residency.UNKNOWN: "-",
    Residency.EMULATED: "CPU",
}
"""Where a block's ops ran, for a column of tables."""

# What an ASCII terminal gets instead.
_ASCII = str.maketrans(
    {"✓": "+", "✗": "x", "↓": "v", "○": "o", "…": "...", "·": "-", "≤": "<=", "─": "-", "—": "-", "×": "x", "→": "->"}
)
# Names come out of files that strangers send: no escape sequence of theirs may reach a terminal.
_CONTROL = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x0A}

# Modules with nothing inside to select.
_LEAF_FAMILIES = re.compile(
    r"(Batch|Group|Layer|Instance|RMS)Norm|(Adaptive)?(Avg|Max)Pool\d|Conv(Transpose)?\d|Dropout"
)
_LEAVES = {"Linear", "Embedding", "ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "Identity", "Flatten"}


def number(value: float, digits: int = 2) -> str:
    """Returns a short number: "3.1e-4", "412", "1.1e6", "nan"."""
    if not isfinite(value):
        return "nan" if isnan(value) else ("inf" if value > 0 else "-inf")
    if value == 0:
        return "0"
    exponent = floor(log10(abs(value)))
    if -2 <= exponent < 4:
        decimals = max(0, digits - 1 - exponent)
        return f"{value:.{decimals}f}"
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(power)}"


def correlation(value: float) -> str:
    """Returns a correlation with four decimals, or "nan"; only what rounds to it reads 1.0000."""
    return "nan" if isnan(value) else f"{value:.4f}"


def count(value: int) -> str:
    """Returns a count in at most five characters: "1246", "12.5k", "3.1M"."""
    if value < 10_000:
        return str(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.1f}{unit}" if scaled < 99.95 else f"{scaled:.0f}{unit}"
    return str(value)


def percent(part: int, whole: int) -> str:
    """Returns a share in at most five characters; what is not quite none or all never reads so."""
    if whole == 0:
        return "nan"
    if part in (0, whole):
        return "0%" if part == 0 else "100%"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f}%"


def shape(dims: tuple[int, ...]) -> str:
    """Returns "[2, 64, 256]", or "scalar"."""
    return f"[{', '.join(map(str, dims))}]" if dims else "scalar"


def input_line(info: InputInfo) -> str:
    """Returns one input on a line: "x [2, 64] float32, -3.1 to 3.4"."""
    return f"{info.name} {shape(info.shape)} {info.dtype}, {number(info.minimum)} to {number(info.maximum)}"


def seconds(value: float) -> str:
    """Returns a duration: "0.4 s", "12 s", "2 min 05 s"; "-" for nan, what a run that crashed or hung took."""
    if isnan(value):
        return "-"
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def plural(n: int, noun: str) -> str:
    """Returns "1 block", "2 blocks"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def clean(text: str, ascii_only: bool = False) -> str:
    """Returns `text` fit for a terminal: no control codes, and nothing but ASCII where asked."""
    text = text.translate(_CONTROL)
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if ascii_only else text


def worst_ratio(blocks: tuple[BlockResult, ...] | list[BlockResult]) -> float:
    """Returns the largest known ratio, nan when none is known."""
    return max((b.ratio for b in blocks if not isnan(b.ratio)), default=nan)


def device(record: RunRecord) -> str:
    """Returns what the target's numbers come from: "Mali-G710 (phone-7)", "llvmpipe", "emulated fp16, no GPU"."""
    named, adapter = record.environment.get("device", ""), record.placement.adapter
    if record.target not in (RunName.GPU, RunName.GPU_FP32):
        return record.target
    return f"{adapter} ({named})" if named and adapter else adapter or named or record.target


def share_of_zeros(comparison: Comparison) -> str:
    """Returns how many of the target's elements are exactly zero."""
    return percent(comparison.zeros, comparison.elements)


def run_command(record: RunRecord) -> str:
    """Returns the command that makes this run again, from the folder of the model file."""
    settings = record.settings
    parts = ["bisect-litert", shlex.quote(record.model)]
    for pattern in settings.blocks:
        parts += ["--blocks", glob(pattern)]
    parts += ["--tflite", shlex.quote(settings.tflite)] if settings.tflite else []
    parts += ["--signature", shlex.quote(settings.signature)] if settings.signature else []
    parts += ["--int-high", str(settings.int_high)] if settings.int_high is not None else []
    if settings.inputs:
        parts += ["--inputs", shlex.quote(settings.inputs)]
    default = type(settings)()
    if settings.seed != default.seed:
        parts += ["--seed", str(settings.seed)]
    if settings.tap != default.tap:
        parts += ["--tap", settings.tap]
    if settings.ratio_limit != default.ratio_limit:
        parts += ["--ratio-limit", f"{settings.ratio_limit:g}"]
    if settings.output_limit != default.output_limit:
        parts += ["--output-limit", f"{settings.output_limit:g}"]
    parts += ["--strict"] if settings.strict else []
    parts += ["--no-gpu"] if settings.no_gpu else []
    parts += ["--fp32"] if settings.fp32 else []
    return " ".join(parts)


def glob(pattern: str) -> str:
    """Returns a pattern quoted for a shell, with the double quotes people type."""
    return f'"{pattern}"' if not set(pattern) & set('"$`\\!') else shlex.quote(pattern)


def is_leaf(class_name: str) -> bool:
    """Whether a class of torch.nn with this name has no children to select."""
    return class_name in _LEAVES or _LEAF_FAMILIES.match(class_name) is not None


def look_inside(record: RunRecord, model: str) -> str:
    """Returns the command that takes the first culprit apart, empty where it has no parts.

    Args:
        record: What was found.
        model: The model and what goes with it, as a shell takes it.
    """
    names = [culprit.block for culprit in record.culprits]
    block = next((b for b in record.blocks if names and b.name == names[0]), None)
    whole = block is not None and block.module == "(model)"  # only a model without parts is a block itself
    unnamed = record.reference == LITERT_CPU and not block_is_named(block)
    if block is None or not block.module or whole or is_leaf(block.class_name) or unnamed:
        return ""
    return f"bisect-litert {model} --blocks {glob(block.module + '.**')}"


def block_is_named(block: BlockResult | None) -> bool:
    """Whether a block of a .tflite file stands for a module with a class, which may have parts; ops have none."""
    return block is not None and bool(block.class_name) and not re.match(r"ops? \d", block.module)


def quote(word: str) -> str:
    """Returns `word` quoted for a shell where it needs it."""
    return shlex.quote(word)
