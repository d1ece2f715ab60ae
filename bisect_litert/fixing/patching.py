"""The cure as a patch against the user's own file, where the module at fault is a class of theirs."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisect_litert.fixing.agreement import agreement, truth_of
from bisect_litert.fixing.trial import Step
from bisect_litert.models import model_file
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.request import BisectRequest

PATCH = "fix.patch"
MOST_FILES = 400
"""Python files beside the model that are copied to try the patch; larger trees get no patch."""


@dataclass(frozen=True)
class _Edit:
    """New lines for a forward's body."""

    path: Path
    first: int
    last: int
    """Lines of the body, counted from 1."""
    lines: tuple[str, ...]


def patch_of(loaded: LoadedModel, steps: Sequence[Step], request: BisectRequest, rewrites: str) -> str:
    """Returns a unified diff that makes the replacements in the user's source; "" where that cannot be done.

    Where every replaced module is the only one of its class in the model, the class is defined beside the model file,
    and the new forward needs nothing but what the class has, the forwards themselves are changed. Else the file gets
    `rewrites.py` beside it and calls `apply`. Only for classes of the user's own; the patched copy is imported and
    compared.
    """
    file = Path(request.model.rpartition(":")[0] or request.model)
    file = file if file.is_file() else Path(request.model)
    if not file.is_file() or not steps:
        return ""
    root = file.resolve().parent
    if not all(_is_users(type(loaded.module.get_submodule(step.path)), root) for step in steps):
        return ""
    for changed in (_forwards(loaded, steps, root), _applied(request.model, file, rewrites)):
        if changed is not None and _works(loaded, changed, root, file, request):
            return _diff(changed, root)
    return ""


def _is_users(kind: type, root: Path) -> bool:
    try:
        return Path(inspect.getsourcefile(kind) or "").resolve().is_relative_to(root)
    except TypeError:
        return False


def _diff(changed: dict[Path, tuple[str, str]], root: Path) -> str:
    parts: list[str] = []
    for path, (before, after) in changed.items():
        name = path.relative_to(root).as_posix()
        names = (f"a/{name}" if before else "/dev/null", f"b/{name}")
        parts += difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), *names)
    return "".join(parts)


def _forwards(loaded: LoadedModel, steps: Sequence[Step], root: Path) -> dict[Path, tuple[str, str]] | None:
    edits: list[_Edit] = []
    for step in steps:
        edit = _edit(loaded.module, step, root)
        if edit is None or any(edit.path == e.path and edit.first == e.first for e in edits):
            return None
        edits.append(edit)
    return _texts(edits)


def _applied(spec: str, file: Path, rewrites: str) -> dict[Path, tuple[str, str]] | None:
    """Adds rewrites.py beside the model file, and at the end of that file the call of `apply`."""
    path, before = file.resolve(), file.read_text(encoding="utf-8")
    asked = spec[len(str(file)) :].lstrip(":")
    defined = {
        name: isinstance(node, ast.FunctionDef)
        for node in ast.parse(before).body
        for name in _names_of(node)
        if name == asked or (not asked and name in ("model", "get_model"))
    }
    name = asked or next((n for n in ("model", "get_model") if n in defined), "")
    beside = path.with_name("rewrites.py")
    if name not in defined or beside.exists():
        return None
    if defined[name]:
        call = f"""

_{name}_as_it_was = {name}


def {name}():
    made = _{name}_as_it_was()
    return (apply(made[0]), *made[1:]) if isinstance(made, (tuple, list)) else apply(made)
"""
    else:
        call = f"\n{name} = apply({name})\n"
    after = f"{before.rstrip()}\n\n\nfrom rewrites import apply  # noqa: E402\n{call}"
    return {path: (before, after), beside: ("", rewrites)}


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _edit(model: Any, step: Step, root: Path) -> _Edit | None:
    module = model.get_submodule(step.path)
    kind = type(module)
    try:
        path = Path(inspect.getsourcefile(kind) or "").resolve()
        lines, start = inspect.getsourcelines(kind.forward)
    except (OSError, TypeError):
        return None
    if not path.is_relative_to(root) or kind.forward.__qualname__ != f"{kind.__qualname__}.forward":
        return None
    if any(type(part) is kind and part is not module for part in model.modules()):
        return None
    body = _body_of(step.replacement.source)
    if body is None or step.replacement.arguments:
        return None
    own = _function(textwrap.dedent("".join(lines)))
    if own is None:
        return None
    theirs = [n.arg for n in (*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs)]
    if body[1] != theirs:
        return None
    first, last = start + own.body[0].lineno - 1, start + (own.body[-1].end_lineno or 0) - 1
    if first == start + own.lineno - 1:
        return None  # "def forward(self, x): return x" on one line
    margin = " " * (own.body[0].col_offset + _margin(lines))
    return _Edit(path, first, last, tuple(f"{margin}{line}\n" if line else "\n" for line in body[0]))


def _margin(lines: Sequence[str]) -> int:
    return len(lines[0]) - len(lines[0].lstrip())


def _function(source: str) -> ast.FunctionDef | None:
    try:
        found = ast.parse(source).body[0]
    except SyntaxError:
        return None
    return found if isinstance(found, ast.FunctionDef) else None


def _body_of(source: str) -> tuple[list[str], list[str]] | None:
    """The lines of a replacement's forward and its parameters; None when it needs more than the class has."""
    tree = ast.parse(source)
    kind = tree.body[-1]
    if len(tree.body) != 1 or not isinstance(kind, ast.ClassDef):
        return None
    functions = {f.name: f for f in kind.body if isinstance(f, ast.FunctionDef)}
    made = functions.get("__init__")
    if made is None or len(made.body) != 2 or "forward" not in functions or len(functions) != 2:
        return None  # more than super().__init__() and adopt(): it holds constants of its own
    forward = functions["forward"]
    lines = source.splitlines()
    # From the line after the signature, so that a comment above the first statement stays.
    text = "\n".join(lines[forward.lineno : forward.end_lineno])
    text = re.sub(r"\bF\.", "torch.nn.functional.", textwrap.dedent(text))
    text = re.sub(r"\bmath\.inf\b", 'float("inf")', text)
    if re.search(r"\bmath\.", text):
        return None
    return text.splitlines(), [a.arg for a in (*forward.args.posonlyargs, *forward.args.args, *forward.args.kwonlyargs)]


def _texts(edits: Sequence[_Edit]) -> dict[Path, tuple[str, str]] | None:
    found = {}
    for path in dict.fromkeys(edit.path for edit in edits):
        before = path.read_text(encoding="utf-8")
        lines = before.splitlines(keepends=True)
        for edit in sorted((e for e in edits if e.path == path), key=lambda e: -e.first):
            lines[edit.first - 1 : edit.last] = edit.lines
        after = "".join(lines)
        if not re.search(r"^import torch\s*$", after, re.MULTILINE):
            head = re.search(r"^(?:import|from) (?!__future__)", after, re.MULTILINE)
            if head is None:
                return None
            after = f"{after[: head.start()]}import torch\n{after[head.start() :]}"
        found[path] = (before, after)
    return found


def _works(
    loaded: LoadedModel, changed: dict[Path, tuple[str, str]], root: Path, file: Path, request: BisectRequest
) -> bool:
    """Whether a patched copy of the files imports and computes what the original computes."""
    sources = [p for p in root.rglob("*.py") if not any(part.startswith(".") for part in p.relative_to(root).parts)]
    if len(sources) > MOST_FILES:
        return False
    with tempfile.TemporaryDirectory(prefix="bisect-litert-patch-") as name:
        copy = Path(name) / "model"
        for source in sources:
            target = copy / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        for path, (_, after) in changed.items():
            (copy / path.relative_to(root)).write_text(after, encoding="utf-8")
        spec = str(copy / file.name) + request.model[len(str(file)) :]
        modules, search = dict(sys.modules), list(sys.path)
        own = [n for n, m in modules.items() if str(getattr(m, "__file__", None) or "").startswith(str(root))]
        try:
            for module in own:
                del sys.modules[module]
            patched = model_file.load(spec, inputs_path=request.inputs, seed=request.seed)
            found = agreement(patched, truth_of(loaded))
        except Exception:
            return False
        finally:
            sys.modules.clear()
            sys.modules.update(modules)
            sys.path[:] = search
    return not found.complaint
