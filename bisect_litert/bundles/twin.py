"""What a run keeps of each culprit in PyTorch's terms, so that a bundle can build it again without the user's model.

Cut out of the model as torch.export wrote it down: the guilty operator, its module, the block, and the block with what
runs right before it, from small to large, each with what it reads. Nothing is exported for it where the run has
already done so, and one forward gives all values. Each cut is run once and held against the model's own values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.measuring.metrics import compare
from bisect_litert.models import eager
from bisect_litert.programs.exported import ExportedModel
from bisect_litert.programs.node_sets import Suspect, node_sets
from bisect_litert.programs.nodes import Node
from bisect_litert.programs.torch_source import (
    GETITEM,
    PREFIX,
    WEIGHTS,
    Held,
    Scope,
    Step,
    Twin,
    check_target,
    module_source,
)

if TYPE_CHECKING:
    import torch

LIMIT = 64 << 20
"""Bytes of weights and inputs that one culprit may take."""
SAME = 1e-4
"""Relative L2 difference up to which a cut gives what the model gave: the same operators on the same values, in another
order of threads at most."""
_CHECKS = ("_assert", "sym_", "_guards")
"""Begin the names of operators that compute nothing."""


class NotPlainError(Exception):
    """The cut holds something that has no plain source; the text says what."""


def keep(folder: Path, suspect: Suspect, model: ExportedModel | None, blocks: Sequence[str]) -> None:
    """Writes the cuts of one culprit, or why there are none.

    Args:
        folder: The reproduction's own, where it exists.
        suspect: Where to cut.
        model: As exported, operators whole; None when it cannot be exported.
        blocks: The selected blocks' calls.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        twin = (
            Twin(why="torch.export cannot trace the model") if model is None else _cuts(folder, suspect, model, blocks)
        )
    # Whatever an exported graph may hold: the verdict that took minutes to find is worth more.
    except Exception as error:
        said = str(error) if isinstance(error, NotPlainError) else f"{type(error).__name__}: {eager.one_line(error)}"
        twin = Twin(why=said)
    twin.save(folder)


def _cuts(folder: Path, suspect: Suspect, model: ExportedModel, blocks: Sequence[str]) -> Twin:
    cutter = _Cutter(model)
    drafts, why = [], "none of its operators are known"
    for what, names in node_sets(suspect, model, blocks):
        try:
            drafts.append(cutter.draft(what, names))
        except NotPlainError as error:
            why = str(error)
    if suspect.whole:
        everything = frozenset(cutter.nodes)
        try:
            drafts.append(cutter.draft("the whole model", everything, model.outputs))
        except NotPlainError as error:
            why = str(error)
    if not drafts:
        raise NotPlainError(why)
    read = {held.name for draft in drafts for held in draft.inputs}
    values = cutter.values(read | {name for draft in drafts for name in draft.outputs})
    scopes: list[Scope] = []
    for draft in drafts:
        scope = _with_values(draft, values)
        size = _bytes(cutter.weights[h.name] for h in scope.weights) + _bytes(values[h.name] for h in scope.inputs)
        if size > LIMIT:
            why = _too_large(size)
        elif not _faithful(scope, cutter.weights, values):
            why = "cut out, its operators do not give what they gave in the model"
        else:
            scopes.append(scope)
    if not scopes:
        raise NotPlainError(why)
    weights = {h.name for scope in scopes for h in scope.weights}
    if weights:
        np.savez(folder / WEIGHTS, **{name: cutter.weights[name] for name in sorted(weights)})  # type: ignore[arg-type]
    for name in sorted({h.name for scope in scopes for h in scope.inputs}):
        np.save(folder / f"{PREFIX}{name}.npy", values[name], allow_pickle=False)
    return Twin(tuple(scopes))


def _too_large(size: int) -> str:
    return f"it would take {size / (1 << 20):.1f} MB, more than {LIMIT >> 20} MB"


def _bytes(arrays: Iterable[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)


# -- cutting -----------------------------------------------------------------------------------------------------------


class _Cutter:
    """Cuts operators out of an exported graph."""

    def __init__(self, model: ExportedModel) -> None:
        self.model = model
        graph = model.program.graph_module.graph
        self.fx: dict[str, torch.fx.Node] = {node.name: node for node in graph.nodes}
        self.nodes = {n.name: n for n in model.nodes()}
        self._specs = {spec.arg.name: spec for spec in model.program.graph_signature.input_specs}
        self.weights: dict[str, np.ndarray] = {}

    def draft(self, what: str, names: frozenset[str], returned: Sequence[str] = ()) -> Scope:
        """Returns a scope, the shapes of its inputs still unknown.

        Args:
            what: How to call it.
            names: Its operators.
            returned: What it returns; by default what the rest of the model reads of it.

        Raises:
            NotPlainError: It holds something that cannot be written down.
        """
        chosen = self._closed(names)
        order = [n for n in self.nodes if n in chosen and not self._idle(n)]
        reads = dict.fromkeys(i.name for n in order for i in self.fx[n].all_input_nodes if i.name not in chosen)
        outputs = tuple(returned) or self._outputs(order, chosen)
        reads.update(dict.fromkeys(name for name in outputs if name not in chosen))
        inputs: list[Held] = []
        weights: list[tuple[str, bool]] = []
        size = 0
        for name in reads:
            spec = self._specs.get(name)
            if spec is None or spec.kind.name == "USER_INPUT":
                inputs.append(Held(name, "", ()))
                continue
            value = self._weight(name)
            size += value.numel() * value.element_size()
            weights.append((name, spec.kind.name == "PARAMETER"))
        if not inputs:
            raise NotPlainError("it reads no input, the converter computes it once")
        if not outputs:
            raise NotPlainError("none of its results is a float tensor")
        if size > LIMIT:
            raise NotPlainError(_too_large(size))
        for name, _ in weights:
            if name not in self.weights:
                self.weights[name] = eager.to_numpy(self._weight(name))
        held = ((name, self.weights[name], parameter) for name, parameter in weights)
        steps = tuple(self._step(name) for name in order)
        known = tuple(Held(name, array.dtype.name, array.shape, parameter) for name, array, parameter in held)
        return Scope(what, steps, tuple(inputs), known, outputs)

    def _closed(self, names: frozenset[str]) -> set[str]:
        """Adds the parts of results that are several tensors, and what constants are made of."""
        chosen = set(names)
        for name in names:
            chosen.update(user.name for user in self.fx[name].users if user.target is operator.getitem)
        parts = {n for n in chosen if self.fx[n].target is operator.getitem}
        chosen -= {n for n in parts if not chosen.intersection(i.name for i in self.fx[n].all_input_nodes)}
        todo = [i for n in chosen for i in self.fx[n].all_input_nodes]
        while todo:
            node = todo.pop()
            if node.name in self.nodes and node.name not in chosen and self.nodes[node.name].constant:
                chosen.add(node.name)
                todo += node.all_input_nodes
        return chosen

    def _idle(self, name: str) -> bool:
        return self.nodes[name].target.removeprefix("aten.").startswith(_CHECKS)

    def _outputs(self, order: Sequence[str], chosen: set[str]) -> tuple[str, ...]:
        """Float results that are read outside or returned; one that is read inside as well only where all are, since
        such an output may come back wrong for reasons of its own (docs/taps.md)."""
        outer = [
            n
            for n in order
            if not self.nodes[n].constant and _float(self.fx[n]) and any(user not in chosen for user in self._users(n))
        ]
        ends = [n for n in outer if not any(user in chosen for user in self._users(n))]
        return tuple(ends or outer)

    def _users(self, name: str) -> list[str]:
        """What reads a result and computes something; "output" for the model's own."""
        return [u.name for u in self.fx[name].users if u.name not in self.nodes or not self._idle(u.name)]

    def _weight(self, name: str) -> torch.Tensor:
        program, spec = self.model.program, self._specs[name]
        known = program.state_dict
        value = known[spec.target] if spec.target in known else program.constants.get(spec.target)
        if spec.kind.name == "CUSTOM_OBJ" or not hasattr(value, "detach"):
            raise NotPlainError(f"it reads {name}, which is no tensor")
        return value

    def _step(self, name: str) -> Step:
        node, known = self.fx[name], self.nodes[name]
        target = GETITEM if node.target is operator.getitem else known.target
        try:
            check_target(target)
        except ValueError as error:
            raise NotPlainError(str(error)) from None
        place = ", ".join(part for part in (known.module, known.source) if part)
        kwargs = {key: _plain(value) for key, value in node.kwargs.items() if value is not None}
        return Step(name, target, [_plain(value) for value in node.args], kwargs, place)

    def values(self, names: set[str]) -> dict[str, np.ndarray]:
        """Runs the model once and returns what these nodes and inputs hold."""
        import torch

        found: dict[str, np.ndarray] = {}

        def see(node: Node, result: Any, *_: Any) -> None:
            if node.name in names:
                if not isinstance(result, torch.Tensor):
                    raise NotPlainError(f"it reads {node.name}, which is no tensor")
                found[node.name] = eager.to_numpy(result)

        found.update({n: eager.to_numpy(v) for n, v in self.model.given().items() if n in names})
        self.model.walk(see)
        absent = names - found.keys()
        if absent:
            raise NotPlainError(f"the value of {min(absent)} is not known")
        return found


def _float(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return bool(hasattr(value, "is_floating_point") and value.is_floating_point())


def _plain(value: Any) -> Any:
    """An operand as JSON."""
    import torch

    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    raise NotPlainError(f"it holds an operand of type {type(value).__name__}")


def _with_values(scope: Scope, values: Mapping[str, np.ndarray]) -> Scope:
    held = tuple(Held(h.name, values[h.name].dtype.name, values[h.name].shape) for h in scope.inputs)
    return Scope(scope.what, scope.steps, held, scope.weights, scope.outputs)


# -- checking ----------------------------------------------------------------------------------------------------------


def build(scope: Scope, weights: Mapping[str, np.ndarray]) -> Callable[..., Any]:
    """Returns the module that a scope's source makes."""
    import torch

    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "aten": torch.ops.aten}
    exec(compile(module_source(scope, scope.what), "<culprit>", "exec"), names)
    made = names["Culprit"]({name: np.array(weights[name]) for name in (h.name for h in scope.weights)})
    return made.eval()  # type: ignore[no-any-return]


def _faithful(scope: Scope, weights: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> bool:
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        results = build(scope, weights)(*(torch.from_numpy(np.array(values[h.name])) for h in scope.inputs))
    results = results if isinstance(results, tuple) else (results,)
    for name, result in zip(scope.outputs, results, strict=True):
        wanted, got = values[name], eager.to_numpy(result)
        if wanted.shape != got.shape:
            return False
        if np.array_equal(wanted, got, equal_nan=True):
            continue
        found = compare(reference=wanted, target=got)
        if not (found.finite_agreement and found.relative_l2 <= SAME):
            return False
    return True
