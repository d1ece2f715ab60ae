"""One eager PyTorch call that leaves no trace: copies of the module and its inputs, a seed, the user's own traceback.

Neutral ground: the model file, the block list and the torch reference all run the user's code through here.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import random
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.models import structure

if TYPE_CHECKING:
    import torch

_OURS = str(Path(__file__).parents[1])
_PLUMBING = ("_call_impl", "_wrapped_call_impl")
"""torch.nn.Module.__call__'s own frames; they only repeat between every two frames that matter."""


def copy_module(
    module: torch.nn.Module, *, share_parameters: bool = True, known: Mapping[int, Any] = MappingProxyType({})
) -> torch.nn.Module:
    """Returns a copy whose buffers and Python state are its own, so that a forward on it leaves `module` as it was.

    Args:
        module: Any module, including ones `copy.deepcopy` refuses (locks, generators, tensors that carry a graph).
        share_parameters: Keep the Parameter objects themselves; without it they are copied too.
        known: What stands in the copy for an object of the module, by the object's id.
    """
    memo: dict[int, Any] = dict(known)
    for part in module.modules():
        for held in (part._buffers, vars(part)):
            for tensor in held.values():
                if _is_tensor(tensor) and not tensor.is_leaf:
                    memo[id(tensor)] = tensor.detach().clone()
    if share_parameters:
        memo.update((id(parameter), parameter) for parameter in module.parameters())
    with warnings.catch_warnings():
        # What an exported module holds of torch's own classes says so whenever it is copied.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        try:
            duplicate = copy.deepcopy(module, dict(memo))
        except Exception:
            duplicate = _copy_by_parts(module, memo)
    return duplicate


def _copy_by_parts(module: Any, memo: dict[int, Any]) -> Any:
    """Copies module by module and shares the attributes that cannot be copied."""
    parts = list(module.modules())
    for part in parts:  # all shells first: attributes may point at any other module
        memo[id(part)] = part.__class__.__new__(part.__class__)
    for part in parts:
        state = {name: _copy_or_share(value, memo) for name, value in vars(part).items()}
        memo[id(part)].__dict__.update(state)
    return memo[id(module)]


def _copy_or_share(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:
        return copy.copy(value) if isinstance(value, (dict, list, set)) else value


def copy_inputs(value: Any) -> Any:
    """Returns nested inputs with every tensor cloned and every other object copied where it can be."""
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for _, tensor in structure.leaves(value)}
    try:
        return copy.deepcopy(value, dict(memo))
    except Exception:
        return structure.replace(value, {label: memo[id(tensor)] for label, tensor in structure.leaves(value)})


def seed_all(seed: int) -> None:
    """Seeds Python, numpy and torch, so that the user's random weights and inputs come out the same every time."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Sends what the user's code prints to stderr: our stdout is the answer, and may be JSON."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Keeps torch from logging its own traceback of an error that we turn into a sentence."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)


_TALKERS = ("torch.utils._pytree", "torchao")
"""Loggers that complain of each other's versions whenever transformers is imported, to whoever imports it."""


@contextlib.contextmanager
def quiet_packages() -> Iterator[None]:
    """Leaves out warnings of packages about packages, which no model file can do anything about."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _TALKERS}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, seed: int = 0) -> Any:
    """Runs one forward on cloned inputs, without gradients, after seeding torch; the caller's random state is kept.

    The fused attention fast path is off: it skips the submodules' own calls (no hook fires), comes and goes with hooks,
    and is not what is exported.
    """
    import torch

    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), quiet_stdout(), a_core_spared():
            torch.manual_seed(seed)
            own_args, own_kwargs = copy_inputs((tuple(args), dict(kwargs)))
            return module(*own_args, **own_kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@contextlib.contextmanager
def a_core_spared() -> Iterator[None]:
    """Lets torch compute on one core less than there are: the worker that runs LiteRT meanwhile needs one.

    torch's threads wait for each other after every operator, and a thread without a core keeps all others waiting: a
    forward of 20 ms took 0.2 to 1 s on two cores that a worker shared (measured).
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(threads, _cores() - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Returns a contiguous copy; dtypes numpy does not know (bfloat16, float8) and quantised ones become float32."""
    import torch

    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().cpu()
    try:
        array = tensor.numpy()
    except TypeError:
        array = tensor.to(torch.float32).numpy()
    return np.array(array, order="C", copy=True)


def one_line(error: BaseException) -> str:
    """Returns an error's type and message on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_traceback(error: BaseException) -> str:
    """Returns the traceback as the user would see it had they run the code themselves: no frame of ours or of torch's
    call plumbing, and for an import nothing before the file."""
    report = traceback.TracebackException.from_exception(error)
    seen: set[int] = set()
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if _is_users(frame)])
        pending += [one.__cause__, one.__context__]
    text = io.StringIO()
    for line in report.format():
        text.write(line)
    return text.getvalue().rstrip("\n")


def _is_users(frame: traceback.FrameSummary) -> bool:
    name = frame.filename
    if name.startswith((_OURS, "<frozen importlib")) or Path(name).parent.name == "importlib":
        return False
    return not (frame.name in _PLUMBING and name.replace("\\", "/").endswith("torch/nn/modules/module.py"))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
