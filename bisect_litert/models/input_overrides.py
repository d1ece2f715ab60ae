"""`--inputs FILE`: arrays from an .npz or .npy file in place of the model file's own inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bisect_litert.errors import InputsError
from bisect_litert.models.preparation import parameters_of

if TYPE_CHECKING:
    import torch


def override(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: Path
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Replaces inputs by the arrays in a file.

    Args:
        module: The model, for its forward's parameter names.
        args: Positional inputs so far.
        kwargs: Keyword inputs so far.
        path: An .npz whose arrays are named after forward's parameters or by position ("0", "arr_0"), or an .npy for
            the first input. Inputs it does not name stay.

    Returns:
        args, kwargs, and notes on dtypes that were changed.

    Raises:
        InputsError: An unreadable file, an unknown name, or an array that cannot take the dtype of what it replaces.
    """
    positional = list(args)
    named = dict(kwargs)
    parameters, spread, any_name = _parameters(module)
    order = [*(parameters[: len(args)] + [""] * (len(args) - len(parameters))), *kwargs]
    order += [name for name in parameters if name not in order]
    notes: list[str] = []
    for key, array in read_arrays(path).items():
        match = re.fullmatch(r"(?:arr_)?(\d+)", key)
        if key in parameters or key in named:
            place: int | str = parameters.index(key) if key in parameters[: len(args)] else key
        elif match and int(match[1]) < len(order):
            index = int(match[1])
            place = index if index < len(args) else order[index]
        elif match and spread and int(match[1]) == len(positional):
            place = int(match[1])
        elif any_name and not match:
            place = key
        else:
            listed = ", ".join(parameters) or "none with a name"
            raise InputsError(
                f"{path.name} holds {key!r}, which is no input of {type(module).__name__}.",
                hint=f"Name arrays after forward's parameters ({listed}) or by position (0, 1, ...).",
            )
        if isinstance(place, str):
            named[place] = _convert(array, named.get(place), key, notes)
        elif place < len(positional):
            positional[place] = _convert(array, positional[place], key, notes)
        else:
            positional.append(_convert(array, None, key, notes))
    return tuple(positional), named, tuple(notes)


def _parameters(module: torch.nn.Module) -> tuple[list[str], bool, bool]:
    """Returns the names forward takes, and whether it takes any number of arguments by position and by name."""
    signature = parameters_of(module)
    found = list(signature.parameters.values()) if signature else []
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    kinds = {parameter.kind for parameter in found}
    return [p.name for p in found if p.kind not in spread], spread[0] in kinds, spread[1] in kinds


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz by name; the one of an .npy is called "0".

    Raises:
        InputsError: The file is missing, damaged, or holds something else than arrays.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return {"0": content}
        with content:
            return {key: content[key] for key in content.files}
    except FileNotFoundError:
        raise InputsError(f"There is no inputs file {path}.", hint="Give an .npz or .npy file to --inputs.") from None
    except Exception as error:  # numpy raises a different one for every kind of damage
        raise InputsError(
            f"{path.name} cannot be read as .npz or .npy: {_reason(path, error)}.",
            hint="Write it with numpy.savez(file, name=array, ...), numbers only.",
        ) from None


def _reason(path: Path, error: Exception) -> str:
    """What is wrong with a file; numpy takes what it does not know for a pickle and advises to load that."""
    if not isinstance(error, OSError):
        with path.open("rb") as file:
            start = file.read(6)
        if start and not start.startswith((b"PK", b"\x93NUMPY")):
            return "it is in neither format"
    return " ".join(str(error).split()).rstrip(".")


def _convert(array: np.ndarray, old: Any, key: str, notes: list[str]) -> Any:
    """Returns the array as a tensor of the dtype it replaces, or as a number where it replaces a number."""
    import torch

    try:
        tensor = torch.from_numpy(np.array(array))
    except TypeError:
        raise InputsError(
            f"The array {key!r} has dtype {array.dtype}, which torch does not know.", hint="Save numbers or booleans."
        ) from None
    if isinstance(old, (bool, int, float)) and tensor.numel() == 1:
        return type(old)(tensor.item())
    if isinstance(old, torch.Tensor):
        dtype = old.dtype
    elif old is None:
        dtype = torch.get_default_dtype() if tensor.dtype == torch.float64 else tensor.dtype
    else:
        raise InputsError(
            f"The input {key!r} is a {type(old).__name__}, which an array cannot replace.",
            hint="Change it in the model file.",
        )
    lossy = tensor.is_complex() and not dtype.is_complex
    converted = tensor if lossy else tensor.to(dtype)
    if tensor.is_floating_point() and not dtype.is_floating_point:
        lossy = not torch.equal(converted.to(tensor.dtype), tensor)
    if lossy:
        raise InputsError(
            f"The array {key!r} is {array.dtype}, but that input is {str(dtype).removeprefix('torch.')}.",
            hint="Save the array with the input's own dtype.",
        )
    if converted.dtype != tensor.dtype:
        notes.append(f"The input {key} was {array.dtype} in the inputs file and is used as {str(dtype)[6:]}.")
    return converted
