"""Converts a model, or finds the conversion of the very same program in the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bisect_litert.graphs.conversion import convert, quiet
from bisect_litert.graphs.conversion_key import conversion_key
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.store import Store, user_store
from bisect_litert.programs.exported import lines_of_helpers

if TYPE_CHECKING:
    import torch

FOLDER = "conversions"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model."""

    graph: Graph
    seconds: float
    stored: bool
    """Whether it was found in the store."""
    program: torch.export.ExportedProgram | None = None
    """What torch.export made of the model on the way; None where it does not hold every operator in one graph."""


class Converter:
    """Converts modules.

    Args:
        store: Where earlier conversions are and new ones go; None to convert always and keep nothing.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store

    @classmethod
    def of_user(cls, cache: bool) -> Converter:
        """Returns one with the user's own store, or none."""
        return cls(user_store(FOLDER) if cache else None)

    def convert(
        self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: Path, log: Path
    ) -> Conversion:
        """Converts a module, as `conversion.convert` does.

        Raises:
            ConversionError: The converter refused the model.
        """
        started, store = time.monotonic(), self._store
        if store is None:
            return Conversion(convert(module, args, kwargs, path, log), time.monotonic() - started, stored=False)
        with quiet(log):
            program = _exported(module, tuple(args), dict(kwargs))
        key = conversion_key(program) if program is not None else None
        if key is not None and store.get(key, path):
            return Conversion(Graph.read(path), time.monotonic() - started, True, _flat(program))
        with _handed_over(module, program):
            graph = convert(module, args, kwargs, path, log)
        if key is not None:
            store.put(key, path)
        return Conversion(graph, time.monotonic() - started, False, _flat(program))


def _exported(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram | None:
    """Exports a module as litert-torch does; None when that fails, which the converter says better."""
    import torch

    try:
        with lines_of_helpers():
            return torch.export.export(module, args=args, kwargs=kwargs, strict=False)
    except Exception:
        return None


def _flat(program: torch.export.ExportedProgram | None) -> torch.export.ExportedProgram | None:
    return program if program is not None and len(list(program.graph_module.modules())) == 1 else None


@contextmanager
def _handed_over(module: Any, program: torch.export.ExportedProgram | None) -> Iterator[None]:
    """Gives litert-torch the program that was exported for the key when it asks torch for just that.

    It exports as its first step, which takes a tenth of a conversion, and has no argument for a program. What it then
    changes of it, in preparation of another export, is undone.
    """
    import torch

    original, ready = torch.export.export, [program] if program is not None else []
    targets = [(node, node.target) for node in program.graph.nodes] if program is not None else []

    def export(mod: Any, *args: Any, **options: Any) -> Any:
        same = mod is module and not args and not options.get("strict") and options.get("dynamic_shapes") is None
        return ready.pop() if same and ready else original(mod, *args, **options)  # popped: what follows changes it

    torch.export.export = export
    try:
        yield
    finally:
        torch.export.export = original
        for node, target in targets:
            node.target = target
