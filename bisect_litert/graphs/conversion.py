"""PyTorch to .tflite, with the converter's chatter kept in a file and its failures made one sentence."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.errors import ConversionError
from bisect_litert.graphs.graph import Graph
from bisect_litert.verdicts.advice import way_around

_TRACER = "torch/fx/proxy.py"
"""PyTorch's own, where the converter puts operations whose line it has lost."""


def convert(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: Path, log: Path) -> Graph:
    """Converts a module with litert-torch and reads the result back.

    Args:
        module: A torch.nn.Module in eval mode.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        path: Where the .tflite file goes.
        log: File that everything the converter prints is appended to.

    Raises:
        ConversionError: The converter refused the model; its message and the module it sits in are in the error.
    """
    with quiet(log):
        import litert_torch

        try:
            edge_model = litert_torch.convert(module, tuple(args), dict(kwargs) or None)
            edge_model.export(str(path))
        except KeyboardInterrupt:
            raise
        except Exception as error:
            raise _explain(error, module) from error
    return Graph.read(path)


def _explain(error: Exception, module: Any = None) -> ConversionError:
    """Finds the sentence in a converter's exception that a person can act on."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if re.search(r"(?i)not (?:be )?(?:legal|support|implement)|unsupported|no lowering|failed to|error:", line)
    ]
    hint = "Rewrite that operation, or leave the module out; the log has all the converter said."
    first = _bare((telling or lines or [type(error).__name__])[0])
    if lines and "data-dependent expression" in lines[0]:  # its later lines say "error:" as well, and nothing else
        first = lines[0].split("  (")[0].split(" (unhinted")[0].rstrip(".")
        hint = "Replace the if, loop or index that depends on a tensor's values, for example by torch.where."
    illegal = re.search(r"(\S+\.py):(\d+):\d+: error: (failed to legalize operation '[\w.]+')", text)
    if illegal:
        path, line, said = illegal.groups()
        who = _modules_at(module, path, int(line)) if module is not None else ()
        where_at = [*who, *([] if _TRACER in path else [f"{os.path.basename(path)}:{line}"])]
        first = f"{said} (in {', '.join(where_at)})" if where_at else said
    op = re.search(r"\b(?:aten|torchvision|prims|mhlo|stablehlo|vhlo|tfl)\.[A-Za-z_0-9.]+", text)
    place = re.search(r"[\w.]+/[\w./]*\w", " ".join(lines[:40]) if op else "")
    where = re.search(r'File "([^"]+)", line (\d+), in (forward\w*)', text)
    if op:
        hint = f"The operation is {op.group(0)}; replace it in the model, or convert the part before it."
    way = way_around(f"{type(error).__name__} {first}") or (way_around(op.group(0)) if op else "")
    if way:
        hint = f"The operation is {op.group(0)}. {way}" if op else way
    if first.endswith(("flatbuffer:", "passes:")):
        first = f"{first.rstrip(':')}, and it does not say why"
        hint = "Some operation has no .tflite form: convert parts of the model to find the one that holds it."
    if re.search(r"\bf64>|xf64>", text) and illegal:
        hint = "It computes in float64 there: model.float(), and .float() on the inputs and inside forward."
    if "bfloat16" in text.lower() or "float16" in text.lower() or "half" in text.lower():
        hint = "Convert the model to float32 first: model.float()."
    sentence = f"litert-torch cannot convert this model: {type(error).__name__}: {_short(first)}"
    if where:
        sentence += f" (in {where.group(3)}, {os.path.basename(where.group(1))}:{where.group(2)})"
    elif place and "torch" in place.group(0) and not illegal:
        sentence += f" (in {place.group(0)})"
    return ConversionError(sentence.rstrip(".") + ".", hint=hint, detail=_tail(text))


def _bare(line: str) -> str:
    """What is wrong, without the name of the step and the place in PyTorch's tracer that stand before it."""
    return re.sub(rf"^(?:Failed to [\w ]+: *)?\S*{_TRACER}:\d+:\d+: error: ", "", line)


def _modules_at(module: Any, path: str, line: int, most: int = 3) -> tuple[str, ...]:
    """Which modules' forward holds a line of a file; the converter names the line only."""
    found = []
    for name, child in module.named_modules():
        code = getattr(type(child).forward, "__code__", None)
        if code is not None and code.co_filename == path:
            lines = [at for _, _, at in code.co_lines() if at]
            if lines and min(lines) <= line <= max(lines):
                found.append(f"{name or '(model)'} ({type(child).__name__})")
    return (*found[:most], f"{len(found) - most} more") if len(found) > most else tuple(found)


def _short(line: str, limit: int = 200) -> str:
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _tail(text: str, lines: int = 12) -> str:
    kept = text.splitlines()[:lines]
    # Without the folders of this machine, which would also crowd out what follows them.
    bare = [re.sub(r"[^\s\"]+/(?=[\w-]+\.py:\d)", "", re.sub(r'File "[^"]*/', 'File "', line)) for line in kept]
    return "\n".join(map(_short, bare))


def input_names(graph: Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the value of each signature input, by its name.

    litert-torch flattens (args, kwargs) in pytree order and names the inputs after their path; an input that the
    graph does not use keeps its place. Names are matched where they can be, order decides where they cannot.

    Raises:
        ConversionError: The graph has another number of inputs than the model was given.
    """
    import torch
    from torch.utils import _pytree as pytree

    named: list[tuple[str, Any]] = []
    for position, value in enumerate(args):
        named += _named(f"args_{position}", value, pytree)
    for key, value in kwargs.items():
        named += _named(key, value, pytree)
    tensors = [(n, v.detach().cpu().numpy()) for n, v in named if isinstance(v, torch.Tensor)]
    ports = [port.name for port in graph.inputs]
    by_name = dict(tensors)
    if all(name in by_name for name in ports):
        return {name: by_name[name] for name in ports}
    if len(ports) != len(tensors):
        raise ConversionError(
            f"the converted graph has {len(ports)} inputs ({', '.join(ports)}) for {len(tensors)} input tensors.",
            hint="Pass every input as a tensor of its own, without constants among them.",
        )
    return dict(zip(ports, (value for _, value in tensors), strict=True))


def _named(name: str, value: Any, pytree: Any) -> list[tuple[str, Any]]:
    flat, _ = pytree.tree_flatten_with_path(value)
    found = []
    for path, leaf in flat:
        parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
        found.append(("_".join([name, *parts]), leaf))
    return found


def _beneath(stream: Any) -> Any:
    return getattr(stream, "rich_proxied_file", stream)


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Sends stdout and stderr to a file, down to the file descriptors that C++ writes to, and silences warnings."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # A live display hands out streams that print above it, on the terminal; what is under them ends in the file.
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_beneath, streams)
    for logger in [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is not _beneath(handler.stream):
                handler.setStream(_beneath(handler.stream))
    saved = [os.dup(1), os.dup(2)]
    try:
        with log.open("a", encoding="utf-8", errors="replace") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
    finally:
        sys.stdout, sys.stderr = streams
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for fd in saved:
            os.close(fd)
