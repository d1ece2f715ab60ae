"""Reads a plan from a TOML file; every mistake is named with its line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bisect_litert.errors import UsageError
from bisect_litert.matrix.plan import KNOWN_TARGETS, NAME, Model, Plan, Target


class PlanError(UsageError):
    """The file does not say what to run."""


_TEXT = (str, "a text in quotes")
_TEXTS = (list, "a text or a list of texts")
_YES = (bool, "true or false")
_WHOLE = (int, "a whole number")
_NUMBER = (float, "a number above 0")
_Kind = tuple[type, str]

_MODEL_KEYS: dict[str, _Kind] = {
    "name": _TEXT,
    "model": _TEXT,
    "blocks": _TEXTS,
    "inputs": _TEXT,
    "seed": _WHOLE,
    "tap": _TEXT,
    "tflite": _TEXT,
    "signature": _TEXT,
    "int_high": _WHOLE,
    "strict": _YES,
    "ratio_limit": _NUMBER,
    "output_limit": _NUMBER,
    "time_limit": _NUMBER,
    "tap_memory": _NUMBER,
    "cell_limit": _NUMBER,
    "targets": _TEXTS,
    "skip": _TEXT,
    "needs": _TEXTS,
    "depends": _TEXTS,
}
_NOT_DEFAULTS = ("name", "model", "skip")
_TARGET_KEYS: dict[str, _Kind] = {
    "name": _TEXT,
    "fp32": _YES,
    "runtime": _TEXT,
    "runner": _TEXT,
    "runner_python": _TEXT,
    "python": _TEXT,
}
_TOP_KEYS = ("title", "targets", "defaults", "models")


def read(path: Path) -> Plan:
    """Reads a plan.

    Raises:
        PlanError: The file is missing, is no TOML, or says something that is not known.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PlanError(f"{path} cannot be read: {said}.", hint="Give a TOML file with [[models]] in it.") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(
            f"{path} is no TOML: {error}.", hint="Texts stand in quotes; a model starts with [[models]]."
        ) from None
    return _Reader(path, text).plan(data)


@dataclass
class _Reader:
    """One reading; knows where in the text things stand."""

    path: Path
    text: str
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()

    def plan(self, data: Mapping[str, Any]) -> Plan:
        self._known_keys(data, _TOP_KEYS, "", 1)
        targets = self._targets(data.get("targets", ["gpu"]))
        names = tuple(t.name for t in targets)
        defaults = self._section(data.get("defaults", {}), _MODEL_KEYS, "[defaults]", self._line_of("defaults"))
        for key in _NOT_DEFAULTS:
            if key in defaults:
                raise self._error(f"{key} has no place in [defaults]", key, "Say it in each [[models]].")
        entries = data.get("models")
        if not isinstance(entries, list) or not entries:
            raise self._error("there is no model in it", "models", 'Add [[models]] with model = "model.py".')
        models: dict[str, Model] = {}
        for number, entry in enumerate(entries, 1):
            model = self._model(entry, number, defaults, names)
            if model.name in models:
                raise self._error(
                    f"two models are called {model.name!r}", "name", "Give one of them another name.", number
                )
            models[model.name] = model
        title = data.get("title", self.path.stem)
        if not isinstance(title, str):
            raise self._error("title is not a text", "title", 'Write title = "...".')
        return Plan(title, self.path.resolve().parent, tuple(models.values()), targets, self.path.name)

    def _targets(self, entries: Any) -> tuple[Target, ...]:
        hint = f'Known are {", ".join(KNOWN_TARGETS)}; others are tables: {{ name = "old", runtime = "2.1.6" }}.'
        if not isinstance(entries, list) or not entries:
            raise self._error("targets is not a list", "targets", hint)
        found: dict[str, Target] = {}
        for entry in entries:
            if isinstance(entry, str):
                if entry not in KNOWN_TARGETS:
                    raise self._error(
                        f"there is no target {entry!r}", "targets", _nearest(entry, KNOWN_TARGETS) or hint
                    )
                target = KNOWN_TARGETS[entry]
            elif isinstance(entry, dict):
                values = self._section(entry, _TARGET_KEYS, "a target", self._line_of("targets"))
                if "name" not in values:
                    raise self._error("a target has no name", "targets", hint)
                target = Target(**values)
                if sum(map(bool, (target.runtime, target.runner, target.python))) > 1:
                    said = f"target {target.name!r} names more than one place to run"
                    raise self._error(said, "targets", "Give one of runtime, runner and python.")
            else:
                raise self._error(f"{entry!r} is no target", "targets", hint)
            self._check_name(target.name, "targets")
            if target.name in found:
                raise self._error(f"two targets are called {target.name!r}", "targets", "Give one another name.")
            found[target.name] = target
        return tuple(found.values())

    def _model(self, entry: Any, number: int, defaults: Mapping[str, Any], targets: Sequence[str]) -> Model:
        if not isinstance(entry, dict):
            raise self._error("models is not a list of tables", "models", "Start each model with [[models]].")
        start = self._start_of(number)
        values = self._section(entry, _MODEL_KEYS, f"model {number}", start)
        if "model" not in values:
            raise self._error(
                f"model {number} does not say which model", "models", 'Add model = "model.py:name".', number
            )
        values.setdefault("name", _name_of(values["model"]))
        self._check_name(values["name"], "name", number)
        chosen = values.get("targets", defaults.get("targets", targets))
        for name in chosen:
            if name not in targets:
                hint = _nearest(name, targets) or f"Known are {', '.join(targets)}."
                raise self._error(f"model {values['name']!r}: there is no target {name!r}", "targets", hint, number)
        tap = values.get("tap", defaults.get("tap", "auto"))
        if tap not in ("auto", "reexport"):
            raise self._error(f"tap is {tap!r}", "tap", 'Write "auto" or "reexport".', number)
        return replace(Model(**{**_heeded(defaults, values), **values}), targets=tuple(chosen))

    def _section(self, entry: Any, known: Mapping[str, _Kind], what: str, start: int) -> dict[str, Any]:
        """Checks keys and values of a table; list values become tuples, dashes in keys underscores."""
        if not isinstance(entry, dict):
            raise self._error(f"{what} is not a table", what.strip("[]"), "Write [defaults] on a line of its own.")
        flat = {key.replace("-", "_"): value for key, value in entry.items()}
        self._known_keys(flat, known, what, start)
        return {key: self._value(key, value, known[key], what, start) for key, value in flat.items()}

    def _value(self, key: str, value: Any, kind: _Kind, what: str, start: int) -> Any:
        wanted, words = kind
        if wanted is list:
            texts = [value] if isinstance(value, str) else value
            if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                return tuple(texts)
        elif wanted is float:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                return float(value)
        elif isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
            return value
        raise self._error(f"{what}: {key} is {value!r}", key, f"It has to be {words}.", start=start)

    def _known_keys(
        self, entry: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], what: str, start: int
    ) -> None:
        for key in entry:
            if key not in known:
                of = f" of {what}" if what else ""
                hint = _nearest(key, known) or f"Known are {', '.join(known)}."
                raise self._error(f"there is no key {key!r}{of}", key, hint, start=start)

    def _check_name(self, name: str, key: str, number: int = 0) -> None:
        if not NAME.fullmatch(name):
            raise self._error(
                f"{name!r} cannot be a name", key, "Names become folders: letters, digits and . _ + - only.", number
            )

    def _error(self, said: str, key: str, hint: str, number: int = 0, *, start: int = 0) -> PlanError:
        line = self._line_of(key, start or (self._start_of(number) if number else 1))
        return PlanError(f"{self.path}:{line}: {said}.", hint=hint)

    def _start_of(self, number: int) -> int:
        """The line on which the n-th model starts."""
        heads = [i for i, line in enumerate(self.lines, 1) if re.match(r"\s*\[\[\s*models\s*\]\]", line)]
        return heads[number - 1] if number <= len(heads) else self._line_of("models")

    def _line_of(self, key: str, start: int = 1) -> int:
        """The first line from `start` on that sets a key or opens its table; `start` when none does."""
        pattern = re.compile(rf"[\s{{,\[]*[\"']?{re.escape(key).replace('_', '[-_]')}[\"']?\s*[=\]]")
        found = (i for i, line in enumerate(self.lines[start - 1 :], start) if pattern.match(line))
        return next(found, start)


def _heeded(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that a model has a use for: a list of modules and files shares one section of them."""
    alone = str(values["model"]).endswith(".tflite")
    shipped = alone or bool(values.get("tflite", defaults.get("tflite")))
    unused = {"int_high"} if not alone else set()
    unused |= {"tap"} if shipped else {"signature"}
    return {key: value for key, value in defaults.items() if key not in unused}


def _nearest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _name_of(model: str) -> str:
    """A row's name where none is given: what is named of a file, else the file."""
    _, colon, attribute = model.rpartition(":")
    if colon and re.fullmatch(r"[\w.]+", attribute):
        return attribute.rpartition(".")[2].removeprefix("get_")
    return re.sub(r"[^\w.+-]+", "-", Path(model).name.removesuffix(".py")).strip("-.") or "model"
