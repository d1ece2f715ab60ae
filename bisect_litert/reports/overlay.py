"""Node data for Model Explorer: a run's numbers and verdicts on the nodes of the converted model.

Keys are names of tensors of the graph that shipped, without taps, so that they fit the .tflite file the user has:

    model-explorer model.tflite --node_data_paths relative_error.json,verdicts.json
"""

from __future__ import annotations

import json
from math import isfinite, log10
from typing import Any

from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import cause_words, local_on_target
from bisect_litert.vocabulary import Mark

COLOURS = {
    Mark.OK: "#d9ead3",
    Mark.CULPRIT: "#cc0000",
    Mark.AFTER: "#fce5cd",
    Mark.NOTE: "#fff2cc",
    Mark.UNTAPPED: "#eeeeee",
    Mark.UNKNOWN: "#d9d9d9",
}
_LOWEST, _HIGHEST = -3.0, 0.0
"""Powers of ten of the relative error where the colour begins and ends."""


def relative_error(record: RunRecord) -> str:
    """Returns the local relative L2 error, on block outputs and on the ops looked into.

    What is not finite has no number, and is left to the verdicts.
    """
    found: dict[str, float] = {}
    for block in record.blocks:
        local = local_on_target(record, block)
        # The worst tensor of the block's output is what was kept; which of several it is, the record does not say.
        if local is not None and len(block.taps) == 1:
            found[block.taps[0].tensor] = local.relative_l2
    for culprit in record.culprits:
        found.update({op.tensor: op.local.relative_l2 for op in culprit.ops if op.local is not None})
    results = {
        tensor: {"value": value, "bgColor": _heat(value)}
        for tensor, value in found.items()
        if tensor and isfinite(value)
    }
    return _document(f"bisect-litert: local relative L2 error, {formats.device(record)}", results)


def verdicts(record: RunRecord) -> str:
    """Returns what every block's outputs and every op looked into were found to be."""
    results: dict[str, dict[str, Any]] = {}
    for block in record.blocks:
        word = f"{block.mark.value}: {cause_words(block.cause)}" if block.mark is Mark.CULPRIT else block.mark.value
        for tap in block.taps:
            if tap.tensor:
                results[tap.tensor] = {"value": word, "bgColor": COLOURS[block.mark]}
    for culprit in record.culprits:
        for op in culprit.ops:
            words = cause_words(culprit.cause, culprit.kind)
            word = f"guilty op: {words}" if op.index == culprit.op else f"op: {op.mark.value}"
            if op.tensor and (op.tensor not in results or op.index == culprit.op):
                results[op.tensor] = {"value": word, "bgColor": COLOURS[op.mark]}
    for result in results.values():
        if result["bgColor"] == COLOURS[Mark.CULPRIT]:
            result["textColor"] = "#ffffff"
    return _document(f"bisect-litert: verdicts, {formats.device(record)}", results)


def _heat(value: float) -> str:
    """White at an honest fp16 error, red at nonsense, on a logarithmic scale."""
    power = log10(value) if value > 0 else _LOWEST
    share = min(max((power - _LOWEST) / (_HIGHEST - _LOWEST), 0.0), 1.0)
    rest = round(255 * (1 - share))
    return f"#ff{rest:02x}{rest:02x}"


def _document(name: str, results: dict[str, dict[str, Any]]) -> str:
    return json.dumps({"name": name, "results": results}, indent=1, allow_nan=False) + "\n"
