"""Module paths in a .tflite file's tensor names, whichever converter wrote them.

- litert-torch: `pkg.Net/pkg.Block_b3/torch.nn.modules.linear.Linear_fc;1`, every level a class and an attribute.
- TensorFlow: `model/block_1/conv/BiasAdd`, the last level an op. TensorFlow's own names for bare operations
  (`tf.math.add_3`, which onnx2tf's graphs are made of) say nothing about modules.
- ONNX: `/layer1/layer1.0/conv1/Conv`, each level with its parent's name in front.

Where ops were fused, several paths are joined, the last of the ops first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_QUALIFIED = re.compile(r"(?:[\w<>]+\.)+\w+")
_DIGITS = re.compile(r"\d+")
_WRAPPERS = re.compile(r"(?:Stateful)?PartitionedCall(?:_\d+)?")
_DIALECTS = ("tf.", "tfl.", "arith.", "stablehlo.", "mhlo.", "vhlo.")
"""What compilers call operations, and so tensors that have no name of their own."""
_SEQUENTIAL = ("Sequential", "ModuleList", "ModuleDict")


@dataclass(frozen=True, slots=True)
class Level:
    """One module of a path."""

    key: str
    """As the file spells it; siblings differ in it."""
    label: str
    """What to call it."""
    class_name: str
    """Empty when the name does not tell."""


Path = tuple[Level, ...]


def parse(name: str) -> list[Path]:
    """Returns the module path of each part of a tensor's name; the empty path is the model's own code.

    Parts without any path, such as "serving_default_output_0", are left out.
    """
    parts = (part for part in name.removesuffix("/tap").split(";") if part and not _DIGITS.fullmatch(part))
    found = [_torch_path(part) if _is_torch(part) else _generic_path(part) for part in parts]
    return [path for path in found if path is not None]


def without_root(paths: Sequence[Path]) -> int:
    """Returns how many levels all paths share that stand for the model itself and its wrappers.

    Only names that are not litert-torch's have such levels: there the model's own class has been taken off already.
    """
    count = 0
    while paths and all(len(p) > count and _WRAPPERS.fullmatch(p[count].key) for p in paths):
        count += 1
    generic = all(level.class_name == "" for p in paths for level in p)
    shared = {p[count].key for p in paths if len(p) > count}
    if generic and len(shared) == 1 and all(len(p) > count for p in paths):
        count += 1
    return count


def _is_torch(part: str) -> bool:
    levels = part.split("/")
    return all(_QUALIFIED.fullmatch(level) for level in levels) and not levels[0].startswith(_DIALECTS)


def _torch_path(part: str) -> Path:
    found: list[Level] = []
    parent = ""
    for key in part.split("/")[1:]:
        class_name, attribute = _class_and_attribute(key)
        bare = not _DIGITS.fullmatch(attribute) or parent in _SEQUENTIAL
        # The converter leaves module lists out of the path; "0" alone would not tell two lists apart.
        found.append(Level(key, attribute if bare else f"{class_name}_{attribute}", class_name))
        parent = class_name
    return tuple(found)


def _class_and_attribute(key: str) -> tuple[str, str]:
    """Splits "pkg.My_Block_self_attn": classes are written in CapWords, attributes are not.

    The class ends at the first underscore that a capital does not follow; where one follows every underscore, at the
    first of all.
    """
    tail = key.rpartition(".")[2]
    start = len(tail) - len(tail.lstrip("_"))
    places = [m.start() for m in re.finditer("_", tail) if start < m.start() < len(tail) - 1]
    at = next((i for i in places if not tail[i + 1].isupper()), places[0] if places else -1)
    return (tail[:at], tail[at + 1 :]) if at > 0 else ("", tail)


def _generic_path(part: str) -> Path | None:
    keys = [key for key in part.split("/") if key]
    if len(keys) < 2:
        return None
    found: list[Level] = []
    for key in keys[:-1]:
        if key.startswith("tf."):
            break
        above = found[-1].key if found else ""
        label = key.removeprefix(above + ".") if above else key
        found.append(Level(key, label.replace(".", "_"), ""))
    return tuple(found)
