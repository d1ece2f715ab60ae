"""Dataclasses as JSON that every parser takes.

Floats that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity", so that a NaN stays visible.
"""

from __future__ import annotations

import json
from functools import cache
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
_WORDS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def plain(thing: Any) -> Any:
    """Returns a dataclass as what json.dumps takes: dicts, lists, strings and finite numbers."""
    return _converter().unstructure(thing)


def text(thing: Any) -> str:
    """Returns a dataclass as strictly valid JSON."""
    return json.dumps(plain(thing), indent=1, allow_nan=False) + "\n"


def restored(data: Any, kind: type[T]) -> T:
    """Returns the dataclass that `plain` took apart.

    Raises:
        Exception: Of cattrs and of the dataclass itself, where the data do not fit.
    """
    return _converter().structure(data, kind)


def write(said: str, path: Path) -> Path:
    """Writes a file that is there whole or not at all, and returns its path.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_suffix(".partial")
    partial.write_text(said, encoding="utf-8")
    return partial.replace(path)


def _number_to_json(value: float) -> float | str:
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _number_from_json(value: Any, _: type) -> float:
    return _WORDS[value] if isinstance(value, str) else float(value)


@cache
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter()
    converter.register_unstructure_hook(float, _number_to_json)
    converter.register_structure_hook(float, _number_from_json)
    return converter
