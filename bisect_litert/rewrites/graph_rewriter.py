"""Writes a region's graph anew: every operator goes through a table of handlers, what has none is written as it was."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from bisect_litert.programs.nodes import Node
from bisect_litert.rewrites.contract import CannotRewrite, Change, Replacement
from bisect_litert.rewrites.demands import Demands
from bisect_litert.rewrites.emission import Names, source_of_graph
from bisect_litert.rewrites.handlers import Op, Table, operands_of
from bisect_litert.rewrites.plain import write
from bisect_litert.rewrites.region import Region
from bisect_litert.rewrites.tracing import Traced, Tracer
from bisect_litert.rewrites.values import FP16_MAX, Value, true


@dataclass
class _Progress:
    changes: list[Change] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


def rewrite_graph(region: Region, table: Table, doc: str, *, title: str = "") -> Replacement | None:
    """Writes a region with some operators written otherwise.

    Args:
        region: The module.
        table: Handlers by operator name.
        doc: First lines of the new class's docstring: the derivation and its limits.
        title: What the replacement is called.

    Returns:
        The replacement; None when no handler changed anything.

    Raises:
        CannotRewrite: A value cannot be held, or the module cannot be exported or written down.
    """
    return _Rewriter(region, table).run(doc, title)


def by_line(region: Region, table: Callable[[Callable[[Op], bool]], Table], doc: str) -> Iterator[Replacement]:
    """Writes a region with an operator written otherwise on the guilty line; then, as a second try, everywhere.

    Args:
        region: The module.
        table: Returns handlers for the operators that a predicate picks.
        doc: As for `rewrite_graph`.
    """
    picks: list[Callable[[Op], bool]] = [lambda op: op.node.source in region.lines, lambda op: True]
    for pick in picks if region.lines else picks[1:]:
        replacement = rewrite_graph(region, table(pick), doc)
        if replacement is not None:
            yield replacement


class _Rewriter:
    def __init__(self, region: Region, table: Table) -> None:
        self.region, self.table = region, table
        self.program = region.exported.program
        self.nodes: dict[str, Node] = {node.name: node for node in region.exported.nodes()}
        self.graph: fx.Graph = self.program.graph_module.graph
        self.tracer = Tracer(len(region.calls))
        self.known = _Progress()
        self.demands = Demands(self.graph)
        self.env: dict[str, Any] = {}

    def run(self, doc: str, title: str) -> Replacement | None:
        self._place_inputs()
        for node in self.graph.nodes:
            if node.op == "call_function":
                self.env[node.name] = self._call(node)
        if not self.known.changes:
            return None
        name = class_name(self.region)
        lines = [f"{c.source}: {c.how}" if c.source else c.how for c in self.known.changes]
        listed = "\n".join(f"- {line}" for line in dict.fromkeys(lines))
        source = source_of_graph(
            name,
            f"{doc.strip()}\n\nWritten otherwise than in {self.region.class_name}:\n\n{listed}",
            self.tracer.graph,
            Names(self.signature, self.inputs, self.known.held),
            self._returned(),
            self.known.constants,
            self.imports,
        )
        return Replacement(name, source, {}, tuple(self.known.changes), title)

    # -- what comes in -------------------------------------------------------------------------------------------------

    def _place_inputs(self) -> None:
        leaves = [self._leaves(call) for call in self.region.calls]
        given = iter(range(len(leaves[0])))
        self.inputs: dict[str, str] = {}
        self.signature = _signature(self.region.module)
        for node, spec in zip(
            [n for n in self.graph.nodes if n.op == "placeholder"],
            self.program.graph_signature.input_specs,
            strict=True,
        ):
            if spec.kind.name == "USER_INPUT":
                index = next(given)
                expression = leaves[0][index][0]
                values = [each[index][1] for each in leaves]
                if not isinstance(values[0], torch.Tensor):
                    self.env[node.name] = values[0]
                    continue
                self.inputs[node.name] = expression
                value = Value(self.tracer.place("placeholder", node.name, values, constant=False))
                if value.is_float and value.peak > FP16_MAX:
                    raise CannotRewrite(
                        f"its input {expression} reaches {value.peak:.3g}, which fp16 cannot hold: what makes it has to"
                        " be rewritten together with it"
                    )
                self.env[node.name] = value
            elif node.users:
                self.env[node.name] = self._held(node.name, str(spec.target))

    def _held(self, name: str, target: str) -> Value:
        """A parameter, buffer or constant."""
        known = self.program.state_dict
        tensor = known[target] if target in known else self.program.constants[target]
        tensor = tensor.detach()
        owner, _, attribute = target.rpartition(".")
        try:
            held = getattr(self.region.module.get_submodule(owner), attribute, None)
        except AttributeError:
            held = None
        if isinstance(held, torch.Tensor) and held.shape == tensor.shape:
            if not (attribute in self.region.module._parameters or attribute in self.region.module._buffers or owner):
                # A plain attribute of the module itself: the new one does not have it.
                self.known.constants[attribute] = tensor
            self.known.held[name] = _held_word(owner, attribute)
        else:
            self.known.constants[name] = tensor
            self.known.held[name] = f"self.{name}"
        return Value(self.tracer.place("get_attr", name, [tensor] * len(self.region.calls), constant=True))

    def _new_constant(self, tensor: torch.Tensor, name: str) -> Traced:
        taken = {*dir(self.region.module), *self.known.constants}
        name = next(n for n in (name, *(f"{name}_{i}" for i in range(1, 1000))) if n not in taken)
        self.known.constants[name] = tensor
        self.known.held[name] = f"self.{name}"
        return self.tracer.place("get_attr", name, [tensor] * len(self.region.calls), constant=True)

    def _leaves(self, call: Any) -> list[tuple[str, Any]]:
        names = _positional(self.region.module, len(call.args))
        found = []
        for path, leaf in pytree.tree_flatten_with_path((call.args, dict(call.kwargs)))[0]:
            side, first, *rest = path
            word = names[first.idx] if side.idx == 0 else first.key
            if not re.fullmatch(r"\w+(\[\d+\])?", str(word)):
                raise CannotRewrite(f"its input {word!r} is no name")
            found.append((str(word) + "".join(map(_step, rest)), leaf))
        return found

    # -- operators -----------------------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> Any:
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return self._python_call(node)
        look = fx.node.map_arg((node.args, node.kwargs), lambda n: self.env[n.name])
        args, kwargs = look
        op = Op(
            node=self.nodes[node.name],
            name=target._schema.name.partition("::")[2],
            target=target,
            args=args,
            kwargs=kwargs,
            operands=operands_of(target, args, kwargs),
            small_matters=node.name in self.demands.small,
            saturates=node.name in self.demands.saturating,
            change=self._change_at(node.name, str(target)),
            constant=self._new_constant,
        )
        handler = self.table.get(op.name)
        before = {n.name for n in self.tracer.graph.nodes}
        result = handler(op) if handler is not None else NotImplemented
        if result is NotImplemented:
            result = self._plain(op)
        self._rename(node.name, result, before)
        return result

    def _rename(self, name: str, result: Any, before: set[str]) -> None:
        if isinstance(result, Value) and result.stored.node.name not in before:
            taken = {n.name for n in self.tracer.graph.nodes}
            if name not in taken:
                result.stored.node._rename(name)

    def _python_call(self, node: fx.Node) -> Any:
        if getattr(node.target, "__name__", "") == "getitem":
            source, index = node.args
            return self.env[source.name][index]  # type: ignore[union-attr,index]
        raise CannotRewrite(f"it holds {node.target}, which is no ATen operator")

    def _plain(self, op: Op) -> Any:
        def as_it_is(thing: Any) -> Any:
            return true(thing, f"what {op.name} reads") if isinstance(thing, Value) else thing

        args, kwargs, operands = _map((op.args, dict(op.kwargs), dict(op.operands)), as_it_is)
        if not any(isinstance(leaf, Traced) for leaf in pytree.tree_leaves((args, kwargs), is_leaf=_is_traced)):
            return self._without_operands(op, args, kwargs)
        result = write(op, args, kwargs, operands)
        if isinstance(result, Traced) and isinstance(result.values[0], (tuple, list)):
            from bisect_litert.rewrites.tracing import item

            return [Value(item(result, i)) for i in range(len(result.values[0]))]
        return Value(result) if isinstance(result, Traced) else result

    def _without_operands(self, op: Op, args: Any, kwargs: Any) -> Value:
        """An operator that makes a constant out of nothing, arange or full."""
        kwargs = {k: v for k, v in kwargs.items() if v is not None and k not in ("device", "pin_memory", "layout")}
        made: Any = self.tracer.create_proxy("call_function", op.target, args, kwargs)
        return Value(made)

    def _change_at(self, name: str, operator: str) -> Any:
        node = self.nodes[name]

        def change(how: str, exponent: int | None = None) -> None:
            self.known.changes.append(Change(operator, node.source, how, exponent))

        return change

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _returned(self) -> str:
        specs = [s for s in self.program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
        words: list[str] = []
        for spec in specs:
            if hasattr(spec.arg, "name") and spec.arg.name in self.env:
                value = self.env[spec.arg.name]
                words.append(
                    "{" + true(value, "what it returns").node.name + "}" if isinstance(value, Value) else repr(value)
                )
            else:
                words.append(repr(getattr(spec.arg, "value", None)))
        self.imports: list[str] = []
        spec = self.program.call_spec.out_spec
        return _written(pytree.tree_unflatten([_Word(w) for w in words], spec), self.imports)


class _Word(str):
    """Source, as opposed to a string."""


def _written(value: Any, imports: list[str]) -> str:
    if isinstance(value, _Word):
        return str(value)
    if type(value) is tuple:
        inside = ", ".join(_written(v, imports) for v in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if type(value) is list:
        return "[" + ", ".join(_written(v, imports) for v in value) + "]"
    if type(value) is dict:
        return "{" + ", ".join(f"{k!r}: {_written(v, imports)}" for k, v in value.items()) + "}"
    kind = type(value)
    if kind.__module__ != "builtins" and "." not in kind.__qualname__ and not kind.__module__.startswith("__"):
        fields: Mapping[str, Any] | None = None
        if isinstance(value, Mapping):
            fields = value
        elif isinstance(value, tuple) and hasattr(value, "_asdict"):
            fields = value._asdict()
        elif hasattr(value, "__dataclass_fields__"):
            fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        if fields is not None:
            line = f"from {kind.__module__} import {kind.__name__}"
            if line not in imports:
                imports.append(line)
            return f"{kind.__name__}(" + ", ".join(f"{k}={_written(v, imports)}" for k, v in fields.items()) + ")"
    raise CannotRewrite(f"it returns a {kind.__name__}, which cannot be written down")


def _map(value: Any, function: Any) -> Any:
    return pytree.tree_map(function, value, is_leaf=lambda x: isinstance(x, (Value, Traced)))


def _is_traced(value: Any) -> bool:
    return isinstance(value, Traced)


def _step(key: Any) -> str:
    for attribute in ("idx", "key"):
        if hasattr(key, attribute):
            return f"[{getattr(key, attribute)!r}]"
    return f".{key.name}"


def _held_word(owner: str, attribute: str) -> str:
    parts = [p for p in owner.split(".") if p]
    if all(part.isidentifier() for part in (*parts, attribute)):
        return ".".join(["self", *parts, attribute])
    return f'self.get_submodule("{owner}").{attribute}' if owner else f'getattr(self, "{attribute}")'


def _signature(module: torch.nn.Module) -> str:
    words, star = ["self"], False
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"*{parameter.name}")
            star = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            words.append(f"**{parameter.name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                words.append("*")
                star = True
            default = parameter.default
            plain = isinstance(default, (int, float, str, bool, type(None)))
            words.append(
                parameter.name
                if default is parameter.empty
                else f"{parameter.name}={default!r}"
                if plain
                else f"{parameter.name}=None"
            )
    return ", ".join(words)


def _positional(module: torch.nn.Module, count: int) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names


def class_name(region: Region) -> str:
    """Returns a class name that carries the module's path: "EncoderLayer3Norm"."""
    words = re.findall(r"[A-Za-z0-9]+", region.path) or [region.class_name]
    name = "".join(word[0].upper() + word[1:] for word in words)
    return name if name[0].isalpha() else f"Part{name}"
