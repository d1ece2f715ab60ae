"""A recorded graph as Python source that a person can read."""

from __future__ import annotations

import inspect
import math
import operator
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from bisect_litert.rewrites.contract import CannotRewrite
from bisect_litert.rewrites.tracing import WHY

_INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.matmul: "@",
    operator.gt: ">",
    operator.ge: ">=",
    operator.lt: "<",
    operator.le: "<=",
    operator.eq: "==",
    operator.ne: "!=",
    operator.and_: "&",
    operator.or_: "|",
}
LARGE = 4096
"""Elements of a constant that is still written out."""


@dataclass(frozen=True)
class Names:
    """What the source calls things that are no results of its own."""

    signature: str
    """"self, x, mask=None"."""
    inputs: Mapping[str, str]
    """Expression by placeholder: {"x": "x", "args_1_0": "states[0]"}."""
    held: Mapping[str, str] = field(default_factory=dict)
    """Expression by get_attr target, where it is not `self.target`."""


def source_of_graph(
    class_name: str,
    doc: str,
    graph: fx.Graph,
    names: Names,
    returned: str,
    constants: Mapping[str, torch.Tensor],
    imports: Sequence[str] = (),
) -> str:
    """Writes a module class whose forward runs a graph.

    Args:
        class_name: Its name.
        doc: Its docstring.
        graph: What was recorded; results without a reader are left out.
        names: What inputs and held tensors are called.
        returned: The expression to return, with nodes as `{name}`.
        constants: Tensors that the original module does not hold, by attribute name.
        imports: Lines the source starts with.
    """
    lines = [*imports, *([""] if imports else []), f"class {class_name}(nn.Module):"]
    lines += _docstring(doc)
    lines += ["", "    def __init__(self, original):", "        super().__init__()", "        adopt(self, original)"]
    for name, tensor in constants.items():
        lines.append(f'        self.register_buffer("{name}", {_tensor(tensor)}, persistent=False)')
    lines += ["", f"    def forward({names.signature}):"]
    writer = _Writer(names)
    wanted = set(re.findall(r"\{(\w+)\}", returned))
    needed = _needed(graph, wanted)
    for node in graph.nodes:
        if node in needed and node.op not in ("placeholder", "get_attr"):
            lines += writer.line(node)
    by_name = {node.name: writer.word(node) for node in graph.nodes}
    lines.append("        return " + re.sub(r"\{(\w+)\}", lambda m: by_name[m[1]], returned))
    return "\n".join(lines) + "\n"


def _needed(graph: fx.Graph, wanted: set[str]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.name in wanted or any(user in found for user in node.users):
            found.add(node)
    return found


class _Writer:
    def __init__(self, names: Names) -> None:
        self._names = names

    def line(self, node: fx.Node) -> list[str]:
        why = node.meta.get(WHY, "")
        text = f"        {node.name} = {self._call(node)}"
        if why and len(text) + len(why) < 116:
            return [f"{text}  # {why}"]
        return [*_comment(why), text]

    def word(self, thing: Any) -> str:
        """Returns an operand as source."""
        if isinstance(thing, fx.Node):
            if thing.op == "placeholder":
                return self._names.inputs[str(thing.target)]
            if thing.op == "get_attr":
                return self._names.held.get(str(thing.target), f"self.{thing.target}")
            return str(thing.name)
        if isinstance(thing, (tuple, list)):
            inside = ", ".join(map(self.word, thing))
            if isinstance(thing, list):
                return f"[{inside}]"
            return f"({inside},)" if len(thing) == 1 else f"({inside})"
        if isinstance(thing, slice):
            parts = [("" if p is None else self.word(p)) for p in (thing.start, thing.stop)]
            return ":".join(parts) + (f":{self.word(thing.step)}" if thing.step is not None else "")
        if isinstance(thing, float):
            return number(thing)
        if thing is None or isinstance(thing, (bool, int, str, torch.dtype, torch.memory_format, torch.layout)):
            return repr(thing)
        if isinstance(thing, torch.device):
            return f'torch.device("{thing}")'
        raise CannotRewrite(f"an operand of type {type(thing).__name__} cannot be written down")

    def _call(self, node: fx.Node) -> str:
        target: Any = node.target
        if node.op == "call_method":
            rest = self._arguments(node.args[1:], node.kwargs)
            return f"{self._tight(node.args[0])}.{target}({rest})"
        if target in _INFIX:
            return f"{self._tight(node.args[0])} {_INFIX[target]} {self._tight(node.args[1])}"
        if target is operator.neg:
            return f"-{self._tight(node.args[0])}"
        if target is operator.getitem:
            index = node.args[1]
            inside = ", ".join(map(self.word, index)) if isinstance(index, tuple) else self.word(index)
            return f"{self._tight(node.args[0])}[{inside}]"
        return f"{_name_of(target)}({self._arguments(node.args, node.kwargs)})"

    def _tight(self, thing: Any) -> str:
        text = self.word(thing)
        return f"({text})" if text.startswith("-") and isinstance(thing, fx.Node) else text

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        return ", ".join([*map(self.word, args), *(f"{key}={self.word(value)}" for key, value in kwargs.items())])


def number(value: float) -> str:
    """A float as source; powers of two as such, since they change no digit."""
    if math.isnan(value):
        return "math.nan"
    if math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    mantissa, exponent = math.frexp(abs(value))
    if mantissa == 0.5 and abs(exponent - 1) > 1:
        if value > 0:
            return f"2.0**{exponent - 1}"
        return repr(value) if 1 < exponent < 21 else f"-(2.0**{exponent - 1})"
    return repr(value)


def _name_of(target: Any) -> str:
    name = getattr(target, "__name__", "")
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    for space, label in ((torch, "torch"), (F, "F")):
        if getattr(space, name, None) is target:
            return f"{label}.{name}"
    raise CannotRewrite(f"{target} cannot be written down")


def _docstring(doc: str) -> list[str]:
    first, *rest = [part for text in _paragraphs(doc) for part in _wrapped(text)]
    if not rest:
        return [f'    """{first}"""']
    return [f'    """{first}', *(f"    {line}".rstrip() for line in rest), '    """']


def _paragraphs(doc: str) -> list[str]:
    """A text's paragraphs and list items, each on one line: they may have been wrapped before, to another width."""
    found: list[str] = []
    for line in inspect.cleandoc(doc).splitlines():
        goes_on = bool(line) and not line.startswith("- ") and bool(found) and bool(found[-1])
        if goes_on:
            found[-1] += " " + line.strip()
        else:
            found.append(line)
    return found


def _wrapped(line: str, width: int = 114) -> list[str]:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [""]


def _comment(why: str, width: int = 108) -> list[str]:
    return [f"        # {line}" for line in textwrap.wrap(why, width)]


def _tensor(tensor: torch.Tensor) -> str:
    if tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
        return f"torch.full({tuple(tensor.shape)}, {number(float(tensor.flatten()[0]))}, dtype={tensor.dtype})"
    if tensor.numel() > LARGE:
        raise CannotRewrite(
            f"a constant of {tensor.numel()} elements belongs to no module, so it cannot be written out"
        )
    values = tensor.tolist()
    text = repr(values).replace("inf", "math.inf").replace("nan", "math.nan")
    return f"torch.tensor({text}, dtype={tensor.dtype})"
