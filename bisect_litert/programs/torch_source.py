"""Part of an exported PyTorch graph as data, and as the Python source of a module; needs no PyTorch itself.

A run writes `twin.json`; a bundle reads it and makes source of it. Run folders are passed on, so nothing of one ends up
in that source but ATen operators, plain names and plain values: everything else is refused when it is read.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "twin.json"
WEIGHTS = "twin_weights.npz"
PREFIX = "twin_"
"""Begins the names of the input files in a run folder."""
SCHEMA = 1
GETITEM = "getitem"

_OPERATOR = re.compile(r"aten\.[a-z_][a-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_FLOATS = ("nan", "inf", "-inf")
_BARRED = ("from_file", "save", "print")
"""ATen operators that do more than compute."""
_TAKEN = frozenset({"self", "weights", "torch", "aten", "nn", "np", "float", "Culprit"})


@dataclass(frozen=True, slots=True)
class Step:
    """One operator's call."""

    name: str
    """Of its result."""
    target: str
    """"aten.mul.Tensor", or "getitem"."""
    args: list[Any]
    """Numbers, strings, None, lists of these, and {"ref": name}, {"torch": "float32"}, {"float": "inf"}, {"device":
    "cpu"}."""
    kwargs: dict[str, Any]
    place: str
    """"blocks.3.norm, model.py:41"."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that a scope reads."""

    name: str
    dtype: str
    """numpy's name."""
    shape: tuple[int, ...]
    parameter: bool = False
    """Of a weight: whether it is a parameter and not a buffer or constant."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Operators that make a module of their own."""

    what: str
    """"the operator aten.mul.Tensor", "enc.b3.norm (LayerNorm)"."""
    steps: tuple[Step, ...]
    inputs: tuple[Held, ...]
    weights: tuple[Held, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Twin:
    """The content of `twin.json`."""

    scopes: tuple[Scope, ...] = ()
    """From the smallest to the whole block."""
    why: str = ""
    """Why there are none."""
    schema: int = SCHEMA

    def save(self, folder: Path) -> None:
        """Writes twin.json."""
        (folder / FILE).write_text(json.dumps(asdict(self), allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Twin:
        """Reads twin.json.

        Raises:
            OSError: There is none.
            ValueError: It is damaged, of another version, or holds something that is no plain computation.
        """
        data = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"{FILE} has not schema {SCHEMA}")
        try:
            scopes = tuple(_scope(entry) for entry in data["scopes"])
            return cls(scopes, str(data["why"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{FILE} is damaged: {error}") from None


def _scope(entry: dict[str, Any]) -> Scope:
    scope = Scope(
        what=" ".join(str(entry["what"]).split()),
        steps=tuple(
            Step(_name(s["name"]), str(s["target"]), list(s["args"]), dict(s["kwargs"]), str(s["place"]))
            for s in entry["steps"]
        ),
        inputs=tuple(_held(h) for h in entry["inputs"]),
        weights=tuple(_held(h) for h in entry["weights"]),
        outputs=tuple(_name(n) for n in entry["outputs"]),
    )
    known = {h.name for h in (*scope.inputs, *scope.weights)}
    for step in scope.steps:
        check_target(step.target)
        for value in (*step.args, *step.kwargs.values()):
            _check(value, known)
        known.add(step.name)
        for key in step.kwargs:
            _name(key)
    if not scope.outputs or not known.issuperset(scope.outputs):
        raise ValueError(f"{FILE} is damaged: an output is never computed")
    return scope


def _held(entry: dict[str, Any]) -> Held:
    shape = tuple(int(n) for n in entry["shape"])
    return Held(_name(entry["name"]), str(entry["dtype"]), shape, bool(entry["parameter"]))


def is_name(text: str) -> bool:
    """Whether a text can stand as a variable in the source."""
    return text.isidentifier() and text.isascii() and not keyword.iskeyword(text) and not text.startswith("__")


def _name(text: Any) -> str:
    if not isinstance(text, str) or not is_name(text):
        raise ValueError(f"{FILE} is damaged: {text!r} is no name")
    return text


def check_target(target: str) -> None:
    """Refuses what is no ATen operator.

    Raises:
        ValueError: It is something else.
    """
    fit = target == GETITEM or (_OPERATOR.fullmatch(target) and target.split(".")[1] not in _BARRED)
    if not fit:
        raise ValueError(f"{target} is no ATen operator")


def _check(value: Any, known: set[str]) -> None:
    if isinstance(value, list):
        for part in value:
            _check(part, known)
    elif isinstance(value, dict):
        (kind, text), *more = value.items()
        fit = {
            "ref": text in known,
            "torch": bool(_WORD.fullmatch(str(text))),
            "float": text in _FLOATS,
            "device": text == "cpu",
        }
        if more or not fit.get(kind, False):
            raise ValueError(f"{FILE} is damaged: {value!r}")
    elif not (value is None or isinstance(value, (bool, int, float, str))):
        raise ValueError(f"{FILE} is damaged: {value!r}")


# -- as Python ---------------------------------------------------------------------------------------------------------


def module_source(scope: Scope, says: str) -> str:
    """Returns the source of `class Culprit(nn.Module)`, which takes a mapping of its weights.

    Needs `torch`, `nn`, and `aten` for `torch.ops.aten` where it is run.

    Args:
        scope: What it computes.
        says: Its docstring, one line.
    """
    quoted = says.replace("\\", "/").replace('"', "'")
    lines = ["class Culprit(nn.Module):", f'    """{quoted}"""', ""]
    lines += ["    def __init__(self, weights):", "        super().__init__()"]
    lines += (f"        {_weight(held)}" for held in scope.weights)
    inputs = ", ".join(["self", *(_variable(h.name) for h in scope.inputs)])
    lines += ["", f"    def forward({inputs}):"]
    lines += (f"        {line}" for line in _body(scope))
    return "\n".join(lines) + "\n"


def _weight(held: Held) -> str:
    loaded = f'torch.from_numpy(weights["{held.name}"])'
    if held.parameter:
        return f"self.{_variable(held.name)} = nn.Parameter({loaded}, requires_grad=False)"
    return f'self.register_buffer("{_variable(held.name)}", {loaded})'


def _body(scope: Scope) -> Iterator[str]:
    weights = {h.name for h in scope.weights}
    place = ""
    for step in scope.steps:
        if step.place and step.place != place:
            place = step.place
            yield f"# {' '.join(place.split())}"
        args = [_value(a, weights) for a in step.args]
        if step.target == GETITEM:
            yield f"{_variable(step.name)} = {args[0]}[{args[1]}]"
            continue
        args += [f"{key}={_value(value, weights)}" for key, value in step.kwargs.items()]
        yield f"{_variable(step.name)} = {step.target}({', '.join(args)})"
    yield f"return {', '.join(_value({'ref': name}, weights) for name in scope.outputs)}"


def _variable(name: str) -> str:
    return f"{name}_" if name in _TAKEN else name


def _value(value: Any, weights: set[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(part, weights) for part in value)}]"
    if isinstance(value, dict):
        ((kind, text),) = value.items()
        if kind == "ref":
            return f"self.{_variable(text)}" if text in weights else _variable(text)
        return {"torch": f"torch.{text}", "float": f'float("{text}")', "device": f'torch.device("{text}")'}[kind]
    return repr(value)
