"""Dataclasses as what JSON can hold, and back, by the types of their fields.

Floats that JSON cannot hold are the words "NaN", "Infinity" and "-Infinity". How a type is turned is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from math import inf, isnan, nan
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_WORDS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
_PLAIN = (str, int, bool)
_Turn = Callable[[Any], Any]


def to_json_form(record: Any) -> Any:
    """Returns a dataclass as dicts, lists, strings and numbers."""
    kind: Any = type(record)
    return _writer(kind)(record)


def from_json_form(data: Any, kind: type[T], *, exact: bool = False) -> T:
    """Returns the dataclass that `to_json_form` made such data of.

    Args:
        data: What JSON held.
        kind: The dataclass, or a tuple of them; a field that is missing has its default.
        exact: Refuse keys that name no field.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: The data is none of that kind.
    """
    wanted: Any = kind
    found: T = _reader(wanted, exact)(data)
    return found


@cache
def _writer(kind: Any) -> _Turn:
    if kind is float:
        return _number_to_json
    if is_dataclass(kind):
        parts = [(name, _writer(hint)) for name, hint, _ in _fields_of(kind)]
        return lambda value: {name: write(getattr(value, name)) for name, write in parts}
    if kind in _PLAIN:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: value.value
    return _inside(kind, _writer, list)


@cache
def _reader(kind: Any, exact: bool) -> _Turn:
    if kind is float:
        return _number_from_json
    if is_dataclass(kind):
        return _dataclass_reader(kind, exact)
    if kind in _PLAIN or (isinstance(kind, type) and issubclass(kind, Enum)):
        turn: _Turn = kind
        return turn
    return _inside(kind, lambda part: _reader(part, exact), tuple)


def _dataclass_reader(kind: Any, exact: bool) -> _Turn:
    parts = [(name, _reader(hint, exact), needed) for name, hint, needed in _fields_of(kind)]
    names = {name for name, _, _ in parts}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise TypeError(f"{kind.__name__} is no {type(data).__name__}")
        if exact and not data.keys() <= names:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(data.keys() - names))}")
        return kind(**{name: turn(data[name]) for name, turn, needed in parts if needed or name in data})

    return read


def _inside(kind: Any, turn_of: Callable[[Any], _Turn], row: Callable[[Any], Any]) -> _Turn:
    """Returns what turns optional values, tuples and dicts by their parts."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        turn = turn_of(next(part for part in parts if part is not NoneType))
        return lambda value: None if value is None else turn(value)
    if origin is tuple and parts[1:] == (...,):
        turn = turn_of(parts[0])
        return lambda value: row(map(turn, _row(value)))
    if origin is tuple:
        turns = [turn_of(part) for part in parts]
        return lambda value: row(turn(one) for turn, one in zip(turns, _row(value), strict=True))
    if origin is dict:
        name, turn = turn_of(parts[0]), turn_of(parts[1])
        return lambda value: {name(key): turn(one) for key, one in value.items()}
    raise TypeError(f"{kind} has no JSON form")


def _row(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a row is no {type(value).__name__}")
    return value


def _fields_of(kind: Any) -> list[tuple[str, Any, bool]]:
    """Name and type of each field, and whether it has to be given."""
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name], _needed(field)) for field in fields(kind)]


def _needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _number_to_json(value: float) -> float | str:
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "Infinity" if value > 0 else "-Infinity"
    return float(value)


def _number_from_json(value: Any) -> float:
    return _WORDS[value] if isinstance(value, str) else float(value)
