"""The cure as a file the user keeps: `rewrites.py`, with one `apply(model)` call and nothing of ours in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bisect_litert.fixing.agreement import agreement, truth_of
from bisect_litert.fixing.trial import Step, replaced
from bisect_litert.models import eager
from bisect_litert.models.preparation import LoadedModel

if TYPE_CHECKING:
    import torch

NAME = "rewrites.py"
_IMPORT = re.compile(r"^(?:import|from) .*\n", re.MULTILINE)


def write(model_name: str, steps: Sequence[Step]) -> str:
    """Returns the source of a module whose `apply(model)` makes the replacements.

    Args:
        model_name: What the model is called, for the docstring.
        steps: In the order they were made.
    """
    from bisect_litert.rewrites import preamble

    imports: list[str] = []
    classes: dict[str, str] = {}
    made = []
    for step in steps:
        source = step.replacement.source
        head = source.partition("class ")[0]
        for line in _IMPORT.findall(head):
            if line.strip() not in imports:
                imports.append(line.strip())
        body = _IMPORT.sub("", head).lstrip("\n") + source[len(head) :]
        name = _unique(step.replacement.class_name, body, classes)
        made.append((step.path, name, step.replacement.arguments))
    places = "\n".join(f"    {path or 'the model itself'}: {name}" for path, name, _ in made)
    lines = [
        f'"""Rewrites that let {model_name} run right on a GPU in fp16. Made and proved by bisect-litert.',
        "",
        "    from rewrites import apply",
        "    model = apply(model)  # once its weights are loaded, before it is converted",
        "",
        "Replaced are:",
        "",
        places,
        "",
        "Every class says what it does otherwise, why that is the same, and where it ends. Those written from a traced",
        "graph hold for the input shapes they were traced with.",
        '"""',
        "",
        preamble.IMPORTS.rstrip(),
    ]
    lines += [*imports, "", "", preamble.text().rstrip()]
    for body in classes.values():
        lines += ["", "", body.rstrip()]
    lines += [
        "",
        "",
        "def apply(model: nn.Module) -> nn.Module:",
        '    """Replaces the modules at fault; returns the model."""',
    ]
    for path, name, arguments in made:
        rest = "".join(f", {key}={value!r}" for key, value in arguments.items())
        lines.append(f'    original = model.get_submodule("{path}")')
        lines.append(f'    model = replace_module(model, "{path}", {name}(original{rest}).train(original.training))')
    lines.append("    return model")
    return "\n".join(lines) + "\n"


def _unique(name: str, body: str, classes: dict[str, str]) -> str:
    """Adds a class under its name, or under one like it when another class has that name."""
    candidate, count = name, 1
    while True:
        text = re.sub(rf"\b{name}\b", candidate, body) if candidate != name else body
        if classes.get(candidate, text) == text:
            classes[candidate] = text
            return candidate
        count += 1
        candidate = f"{name}{count}"


def pruned(loaded: LoadedModel, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Drops replacements that a later one of the same module, or of one around it, has made pointless."""
    kept = list(steps)
    for step in list(steps):
        later = kept[kept.index(step) + 1 :]
        if not any(other.path == step.path or _around(other.path, step.path) for other in later):
            continue
        without = [other for other in kept if other is not step]
        try:
            whole = truth_of(_all(loaded, kept))
            same = agreement(_all(loaded, without), whole).torch32 == 0.0
        except Exception:
            same = False
        if same:
            kept = without
    return tuple(kept)


def _around(outer: str, inner: str) -> bool:
    return not outer or inner.startswith(outer + ".")


def _all(loaded: LoadedModel, steps: Sequence[Step]) -> LoadedModel:
    for step in steps:
        loaded = replaced(loaded, step)
    return loaded


def apply(source: str, module: torch.nn.Module) -> Any:
    """Runs a file's `apply` on a copy of a module, as a user would."""
    space: dict[str, Any] = {"__name__": "rewrites"}
    exec(compile(source, NAME, "exec"), space)
    return space["apply"](eager.copy_module(module))
