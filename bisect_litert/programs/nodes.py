"""One operator of the exported graph: its module, its source line, what it reads."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True)
class Node:
    """One operator of the exported graph."""

    name: str
    """Unique in the graph."""
    target: str
    """"aten.mul.Tensor"."""
    module: str
    """Path of the deepest module it belongs to; "" at the top level."""
    module_class: str
    """That module's class, without its package; "" at the top level."""
    within: tuple[str, ...]
    """Every module it belongs to, outermost first, the model itself left out; "layer@2" in a second call of layer."""
    source: str
    """"model.py:41": the deepest line outside torch's own code; "" when unknown."""
    path: str
    """That file's full path, never written to a record."""
    line: int
    code: str
    """That line's text, stripped."""
    inputs: tuple[str, ...]
    """Names of the nodes it reads; parameters and model inputs have names of their own that `nodes` does not list."""
    numbers: tuple[float, ...]
    """The Python numbers among its positional operands: an exponent, a factor."""
    shape: tuple[int, ...]
    """Of its result; () also for one that is not a single tensor."""
    constant: bool
    """Whether it depends on no input of the model; a converter computes it once, in fp32."""

    def excerpt(self, lines: int = 2) -> str:
        """Returns the source line and `lines` neighbours on each side, numbered; the line starts with ">"."""
        if not self.path:
            return ""
        text = linecache.getlines(self.path)
        first, last = max(1, self.line - lines), min(len(text), self.line + lines)
        width = len(str(last))
        rows = [
            f"{'>' if number == self.line else ' '} {number:>{width}} {text[number - 1].rstrip()}".rstrip()
            for number in range(first, last + 1)
        ]
        return "\n".join(rows)


def describe(node: torch.fx.Node, within: tuple[str, ...], constant: bool) -> Node:
    """Reads an operator off the exported graph.

    Args:
        node: A node that calls a function.
        within: The modules it belongs to, as `Node.within` has them.
        constant: Whether it depends on no input.
    """
    import torch

    _, owner = next(reversed((node.meta.get("nn_module_stack") or {"": ("", "")}).values()))
    owner = owner if isinstance(owner, str) else owner.__name__
    path, line = _user_line(node.meta.get("stack_trace") or "")
    value = node.meta.get("val")
    return Node(
        name=node.name,
        target=str(node.target) if isinstance(node.target, torch._ops.OpOverload) else _plain_name(node.target),
        module=within[-1].partition("@")[0] if within else "",
        module_class=owner.rpartition(".")[2] if within else "",
        within=within,
        source=f"{Path(path).name}:{line}" if path else "",
        path=path,
        line=line,
        code=linecache.getline(path, line).strip() if path else "",
        inputs=tuple(source.name for source in node.all_input_nodes),
        numbers=tuple(float(arg) for arg in node.args if type(arg) in (int, float)),
        shape=tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else (),
        constant=constant,
    )


def _plain_name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _user_line(trace: str) -> tuple[str, int]:
    """Returns file and line of the deepest frame that is not torch's own; ("", 0) without one."""
    import torch

    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
    frames = [(m["path"], int(m["line"])) for m in _FRAME.finditer(trace)]
    users = [frame for frame in frames if not frame[0].startswith(own)]
    return users[-1] if users else ("", 0)
