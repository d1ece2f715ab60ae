"""How a PyTorch model gets in: a Python file or module that defines it together with example inputs.

The spec is `model.py`, `model.py:name` or `package.module:name`, or a .pt2 archive (archive.py). Looked up are

- the model: `model` or `get_model`, or with `:name` that name: a module, a class or function that returns one, or a
  function that returns (module, inputs);
- the inputs: what that function returned; else with `:name` `name_inputs` or `get_name_inputs`; else `inputs` or
  `get_inputs`; each a tensor, a tuple of positional arguments, a dict of keyword arguments, or a function that
  returns one.
"""

from __future__ import annotations

import difflib
import faulthandler
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from bisect_litert.errors import BisectError, InputsError, ModelFileError
from bisect_litert.files.tflite_file import SUFFIX as TFLITE
from bisect_litert.models import archive
from bisect_litert.models.eager import one_line, quiet_packages, quiet_stdout, seed_all, user_traceback
from bisect_litert.models.input_overrides import override
from bisect_litert.models.preparation import LoadedModel, assemble, check_module, normalise, parameters_of, prepare

__all__ = ["LoadedModel", "load", "prepare"]

_MISSING = object()
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@quiet_packages()
def load(spec: str, *, inputs_path: Path | None = None, seed: int = 0) -> LoadedModel:
    """Imports a model and its inputs.

    Args:
        spec: `model.py`, `model.py:name` or `package.module:name`.
        inputs_path: An .npz or .npy file that overrides inputs by name or position.
        seed: Given to Python, numpy and torch before the import and before each function that is called.

    Returns:
        The model in eval mode with its inputs.

    Raises:
        ModelFileError: The file is missing or raises, or defines no model or inputs.
        InputsError: The inputs, or those in `inputs_path`, do not fit the forward.
        UnfitReferenceError: NaN, infinite or unsupported values or dtypes in the weights or inputs.
    """
    if Path(spec).suffix == archive.SUFFIX:
        return archive.load(Path(spec), inputs_path)
    source, name = _split(spec)
    module_object, short = _import(source, seed)
    label = f"{short}:{name}" if name else short
    found, inputs = _find_model(module_object, name, short, seed)
    if inputs is _MISSING:
        inputs = _find_inputs(module_object, name, short, seed)
    module = check_module(found, f"{name or 'The model'} in {short}")
    if inputs is _MISSING and inputs_path is None:
        raise _no_inputs(module, short)
    args, kwargs = ((), {}) if inputs is _MISSING else normalise(inputs)
    notes: tuple[str, ...] = ()
    if inputs_path is not None:
        args, kwargs, notes = override(module, args, kwargs, inputs_path)
    file = getattr(module_object, "__file__", None)
    return replace(assemble(module, args, kwargs, label, notes), path=Path(file) if file else None)


def _split(spec: str) -> tuple[str, str]:
    """Returns file or dotted module, and the name after the colon ("" without one)."""
    source, colon, name = spec.rpartition(":")
    if not colon or "/" in name or "\\" in name or Path(spec).exists():
        return spec, ""
    if not _NAME.fullmatch(name):
        raise ModelFileError(
            f"{name!r} in {spec} is not a name.", hint="Write model.py:name, with a name the file defines."
        )
    return source, name


def _import(source: str, seed: int) -> tuple[ModuleType, str]:
    """Returns the imported file or module, and how to call it in messages."""
    path = Path(source)
    if path.is_dir():
        raise ModelFileError(f"{source} is a folder.", hint=f"Give the Python file in it, such as {path / 'model.py'}.")
    if path.is_file():
        if path.suffix == TFLITE:
            raise ModelFileError(
                f"{source} is a .tflite file, and this needs the PyTorch model it was made of.",
                hint="Give the model.py that builds it, or a .pt2 archive.",
            )
        if path.suffix != ".py":
            raise ModelFileError(
                f"{source} is not a Python file.",
                hint="Give a model.py that builds the module (and loads its weights) and defines its inputs, a .pt2 "
                "archive or a .tflite file.",
            )
        return _guarded(lambda: _import_file(path.resolve()), f"{path.name} failed on import", seed), path.name
    if path.suffix == ".py" or not _NAME.fullmatch(source):
        near = difflib.get_close_matches(path.name, [p.name for p in _python_files(path.parent)], cutoff=0.5)
        hint = f"Nearest: {', '.join(near)}." if near else "Give the path of the Python file that defines the model."
        raise ModelFileError(f"There is no file {source}.", hint=hint)
    _put_on_path(Path.cwd())
    if not _module_exists(source):
        raise ModelFileError(
            f"There is no file and no Python module {source}.",
            hint="Give model.py, model.py:name or package.module:name (looked up here and in what is installed).",
        )
    return _guarded(lambda: importlib.import_module(source), f"{source} failed on import", seed), source


def _import_file(path: Path) -> ModuleType:
    """Runs a file as a module of its own name, inside its package if it is part of one."""
    parents = [path.parent]
    while (parents[-1] / "__init__.py").is_file():
        parents.append(parents[-1].parent)
    for folder in dict.fromkeys((parents[-1], path.parent)):  # its own folder ends up first; stays for lazy imports
        _put_on_path(folder)
    dotted = ".".join([*(p.name for p in reversed(parents[:-1])), path.stem])
    known = sys.modules.get(dotted)
    if known is not None or path.stem in sys.stdlib_module_names:
        same = getattr(known, "__file__", None) == str(path)
        if not same and len(parents) == 1:
            dotted = f"{path.stem}_model_file"  # model.py must not shadow a module of that name that others use
        sys.modules.pop(dotted, None)
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(dotted, path)
    assert spec is not None, "a .py file always has a spec"
    assert spec.loader is not None, "and that a loader"
    if len(parents) > 1:
        importlib.import_module(dotted.rpartition(".")[0])
    module = importlib.util.module_from_spec(spec)
    sys.modules[dotted] = module  # dataclasses and pickling look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(dotted, None)
        raise
    return module


def _find_model(source: ModuleType, name: str, short: str, seed: int) -> tuple[Any, Any]:
    """Returns the model and the inputs that came with it, if any."""
    import torch

    if name:
        value = _named(source, name, short)
    else:
        value, name = next(
            ((v, n) for n in ("model", "get_model") if (v := _get(source, n)) is not _MISSING), (None, "")
        )
        if not name:
            raise ModelFileError(
                f"{short} defines no model.",
                hint=f"Add `model = MyModule()` or `def get_model(): ...` to it, or name another: {short}:NAME."
                f"{_candidates(source)}",
            )
    if callable(value) and not isinstance(value, torch.nn.Module):
        needed = _required_parameters(value)
        if needed:
            there = short.endswith(".py")
            own = "" if there else f"from {short} import {name.partition('.')[0]}; "
            raise ModelFileError(
                f"{name} in {short} needs arguments ({', '.join(needed)}).",
                hint=f"Add `def get_model(): return {name}(...)` to the file, with the arguments filled in."
                if there
                else f"Write a file that makes it, and give that: `{own}model = {name}(...)`, and `inputs = ...`.",
            )
        value = _guarded(value, f"{name}() in {short} failed", seed)
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        return value[0], value[1]
    return value, _MISSING


def _find_inputs(source: ModuleType, name: str, short: str, seed: int) -> Any:
    base = name.rpartition(".")[2]
    own = [f"{base}_inputs", f"get_{base}_inputs"] if base else []
    for candidate in (*own, "inputs", "get_inputs"):
        value = _get(source, candidate)
        if value is _MISSING:
            continue
        if callable(value):
            needed = _required_parameters(value)
            if needed:
                raise InputsError(
                    f"{candidate} in {short} needs arguments ({', '.join(needed)}).",
                    hint="Let it take none and return a tensor, a tuple or a dict.",
                )
            return _guarded(value, f"{candidate}() in {short} failed", seed)
        return value
    return _MISSING


def _named(source: ModuleType, name: str, short: str) -> Any:
    value: Any = source
    for part in name.split("."):
        before, value = value, getattr(value, part, _MISSING)
        if value is _MISSING:
            known = [n for n in dir(before) if not n.startswith("_")]
            near = difflib.get_close_matches(part, known, cutoff=0.4)
            hint = f"Nearest: {', '.join(near)}." if near else f"Give a name that {short} defines.{_candidates(source)}"
            raise ModelFileError(f"{short} defines no {name!r}.", hint=hint)
    return value


def _no_inputs(module: Any, short: str) -> ModelFileError:
    signature = parameters_of(module)
    takes = ", ".join(signature.parameters) if signature else ""
    return ModelFileError(
        f"{short} defines no inputs.",
        hint="Add `inputs = (torch.randn(1, 3, 224, 224),)`, `inputs = {'x': ...}` or `def get_inputs(): ...` to it"
        + (f"; forward takes ({takes})." if takes else "."),
    )


def _guarded(function: Callable[[], Any], failure: str, seed: int) -> Any:
    """Calls the user's code, seeded, and turns what it raises into an error that shows the user's own traceback."""
    seed_all(seed)
    try:
        with quiet_stdout(), _last_words():
            return function()
    except BisectError:
        raise
    except SystemExit as error:
        raise ModelFileError(
            f"{failure}: it called sys.exit({'' if error.code is None else repr(error.code)}).",
            hint='Put what the file does as a script under `if __name__ == "__main__":`.',
            detail=user_traceback(error),
        ) from None
    except Exception as error:
        raise ModelFileError(
            f"{failure}: {one_line(error)}.", hint=_way_out(error), detail=user_traceback(error)
        ) from None


@contextmanager
def _last_words() -> Iterator[None]:
    """Lets a crash in native code, which takes this process along, say at which line of the user's it was."""
    terminal = sys.__stderr__
    if faulthandler.is_enabled() or terminal is None:
        yield
        return
    try:
        faulthandler.enable(terminal, all_threads=False)
    except (OSError, ValueError):  # it has no descriptor
        yield
        return
    try:
        yield
    finally:
        faulthandler.disable()


def _way_out(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"Install what provides {error.name.split('.')[0]!r} beside bisect-litert, which runs in {sys.prefix}."
    if isinstance(error, FileNotFoundError) and error.filename and not os.path.isabs(os.fspath(error.filename)):
        return f"Relative paths count from where the command is started, {os.getcwd()}."
    return "Fix it there."


def _get(source: ModuleType, name: str) -> Any:
    value = getattr(source, name, _MISSING)
    return _MISSING if isinstance(value, ModuleType) else value  # `from pkg import model` is not the model


def _candidates(source: ModuleType) -> str:
    """Returns a sentence with what the file defines that could be the model, or nothing."""
    import torch

    names = []
    for name, value in vars(source).items():
        is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
        own_class = is_class and value.__module__ == source.__name__
        if own_class or isinstance(value, torch.nn.Module):
            names.append(name)
    return f" It defines: {', '.join(names[:8])}." if names else ""


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in spread]


def _module_exists(dotted: str) -> bool:
    parts = dotted.split(".")
    try:
        if importlib.util.find_spec(parts[0]) is None:
            return False
    except (ImportError, ValueError):
        return False
    # What fails below the top package may be the user's own error: only a plainly missing module counts as missing.
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError as error:
        return error.name is None or not dotted.startswith(error.name)
    except Exception:
        return True


def _put_on_path(folder: Path) -> None:
    text = os.fspath(folder)
    if text in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


def _python_files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.py"))
    except OSError:
        return []
