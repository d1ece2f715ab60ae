"""Source of a module from data: what it says, and what is refused when data comes from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bisect_litert.programs.torch_source import Held, Scope, Step, Twin, module_source


def scope(**changes: Any) -> Scope:
    made: dict[str, Any] = {
        "what": "b1 (Norm)",
        "steps": (
            Step("mul", "aten.mul.Tensor", [{"ref": "x"}, {"ref": "p_scale"}], {}, "b1, model.py:3"),
            Step("clamp", "aten.clamp.default", [{"ref": "mul"}, {"float": "-inf"}, 2.0], {}, "b1, model.py:4"),
            Step("to", "aten.to.dtype", [{"ref": "clamp"}, {"torch": "float32"}], {}, "b1, model.py:4"),
            Step("split", "aten.split.Tensor", [{"ref": "to"}, 2], {"dim": 1}, ""),
            Step("part", "getitem", [{"ref": "split"}, 0], {}, ""),
        ),
        "inputs": (Held("x", "float32", (2, 4)),),
        "weights": (Held("p_scale", "float32", (4,), True),),
        "outputs": ("part", "x"),
    }
    return Scope(**{**made, **changes})


def test_the_source_runs_and_computes_what_it_says() -> None:
    text = module_source(scope(), "A norm.")
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "aten": torch.ops.aten}
    exec(text, names)
    scale, x = np.array([1, 2, 3, 4], np.float32), np.ones((2, 4), np.float32)
    module = names["Culprit"]({"p_scale": scale})
    part, same = module(torch.from_numpy(x))
    assert part.tolist() == [[1, 2], [1, 2]]
    assert same.tolist() == x.tolist()
    assert list(dict(module.named_parameters())) == ["p_scale"]
    assert "# b1, model.py:3" in text
    assert text.count("# b1, model.py:4") == 1


def test_a_name_that_python_needs_gets_another() -> None:
    renamed = scope(steps=(Step("torch", "aten.relu.default", [{"ref": "x"}], {}, ""),), weights=(), outputs=("torch",))
    assert "torch_ = aten.relu.default(x)" in module_source(renamed, "")


def test_it_is_written_and_read(tmp_path: Path) -> None:
    Twin((scope(),)).save(tmp_path)
    assert Twin.load(tmp_path) == Twin((scope(),))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": (Step("y", "os.system", ["ls"], {}, ""),), "outputs": ("y",)},
        {"steps": (Step("y", "aten.from_file.default", ["/etc/passwd"], {}, ""),), "outputs": ("y",)},
        {"steps": (Step("y", "aten.mul.Tensor", [{"ref": "x); import os; (x"}], {}, ""),), "outputs": ("y",)},
        {"steps": (Step("y", "aten.mul.Tensor", [{"torch": "hub.load"}], {}, ""),), "outputs": ("y",)},
        {"steps": (Step("y", "aten.mul.Tensor", [{"float": "inf')"}], {}, ""),), "outputs": ("y",)},
        {"steps": (Step("y", "aten.mul.Tensor", [{"ref": "x"}], {"a=1); exit(": 1}, ""),), "outputs": ("y",)},
        {"steps": (Step("y = 1; import os; z", "aten.relu.default", [{"ref": "x"}], {}, ""),)},
        {"outputs": ("nothing",)},
        {"outputs": ()},
        {"inputs": (Held("x, *rest", "float32", (2, 4)),)},
        {"weights": (Held("__class__", "float32", (2, 4)),)},
    ],
)
def test_what_is_no_plain_computation_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    Twin((scope(**changes),)).save(tmp_path)
    with pytest.raises(ValueError):  # noqa: PT011 (the sentence differs by what is wrong)
        Twin.load(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 1, "scopes": [{}], "why": ""}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "twin.json").write_text(text)
    with pytest.raises(ValueError, match=r"twin\.json"):
        Twin.load(tmp_path)


def test_comments_and_docstrings_stay_on_their_line() -> None:
    odd = 'b1\n    import os\n"""'
    steps = (Step("y", "aten.relu.default", [{"ref": "x"}], {}, odd),)
    text = module_source(scope(steps=steps, outputs=("y",)), odd.replace("\n", " "))
    assert not any(line.strip().startswith("import os") for line in text.splitlines())
    compile(text, "x", "exec")
    json.dumps(text)
