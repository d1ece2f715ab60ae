from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert.errors import BisectError, ExitCode, InputsError, ModelFileError, UnfitReferenceError
from bisect_litert.models.model_file import LoadedModel, load, prepare

HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.fc = nn.Linear(2, width)
    def forward(self, x, mask=None):
        return self.fc(x) if mask is None else self.fc(x) * mask
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, text: str, name: str = "model.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def fails(kind: type[BisectError], spec: str, **options: Any) -> BisectError:
    with pytest.raises(kind) as caught:
        load(spec, **options)
    error = caught.value
    assert error.message.endswith(".")
    assert "\n" not in error.message
    assert error.hint
    assert error.exit_code == (ExitCode.CANNOT_TEST if kind is UnfitReferenceError else ExitCode.USAGE)
    return error


@pytest.mark.parametrize(
    "tail",
    [
        "model = Net()\ninputs = torch.ones(1, 2)",
        "model = Net()\ninputs = (torch.ones(1, 2),)",
        "model = Net()\ninputs = [torch.ones(1, 2)]",
        "model = Net()\ninputs = {'x': torch.ones(1, 2)}",
        "model = Net()\ndef get_inputs(): return torch.ones(1, 2)",
        "model = Net()\ninputs = lambda: {'x': torch.ones(1, 2)}",
        "model = Net\ninputs = torch.ones(1, 2)",
        "def model(): return Net()\ninputs = torch.ones(1, 2)",
        "def get_model(): return Net()\ninputs = torch.ones(1, 2)",
        "def get_model(): return Net(), torch.ones(1, 2)",
        "def get_model(): return Net(), {'x': torch.ones(1, 2)}",
        "model = (Net(), torch.ones(1, 2))",
        "import numpy\nmodel = Net()\ninputs = numpy.ones((1, 2), 'float32')",
    ],
)
def test_forms(tmp_path: Path, tail: str) -> None:
    loaded = load(write(tmp_path, HEAD + tail))
    assert isinstance(loaded, LoadedModel)
    assert loaded.label == "model.py"
    assert not loaded.module.training
    (x,) = [*loaded.args, *loaded.kwargs.values()]
    assert torch.equal(x, torch.ones(1, 2))
    assert bool(loaded.args) != bool(loaded.kwargs)


@pytest.mark.parametrize(("name", "width"), [("Net", 2), ("wide", 3), ("make", 4), ("Zoo.big", 5)])
def test_named(tmp_path: Path, name: str, width: int) -> None:
    tail = """
wide = Net(3)
def make(): return Net(4)
class Zoo:
    big = Net(5)
inputs = torch.ones(1, 2)
"""
    loaded = load(write(tmp_path, HEAD + tail) + ":" + name)
    assert loaded.module.fc.out_features == width
    assert loaded.label == f"model.py:{name}"


@pytest.mark.parametrize("own", ["wide_inputs = torch.zeros(7, 2)", "def get_wide_inputs(): return torch.zeros(7, 2)"])
def test_a_name_may_have_inputs_of_its_own(tmp_path: Path, own: str) -> None:
    path = write(tmp_path, f"{HEAD}\nwide = Net(3)\ninputs = torch.ones(1, 2)\n{own}\n")
    assert load(path + ":wide").args[0].shape == (7, 2)


def test_a_module_of_a_package(tmp_path: Path) -> None:
    write(tmp_path, "", "pkg/__init__.py")
    write(tmp_path, HEAD + "inputs = torch.ones(1, 2)", "pkg/nets.py")
    loaded = load("pkg.nets:Net")
    assert loaded.label == "pkg.nets:Net"
    assert type(loaded.module).__module__ == "pkg.nets"


def test_a_file_inside_a_package_may_import_relatively(tmp_path: Path) -> None:
    write(tmp_path, "", "bundle/__init__.py")
    write(tmp_path, HEAD, "bundle/layers.py")
    path = write(
        tmp_path, "from .layers import Net, torch\nmodel = Net()\ninputs = torch.ones(1, 2)", "bundle/model.py"
    )
    assert load(path).label == "model.py"


def test_the_models_folder_is_importable_also_later(tmp_path: Path) -> None:
    write(tmp_path, HEAD, "sub/my_layers.py")
    write(tmp_path, "WIDTH = 6", "sub/my_late.py")
    tail = "def get_model():\n    from my_late import WIDTH\n    return Net(WIDTH), torch.ones(1, 2)"
    path = write(tmp_path, f"from my_layers import *\n{tail}", "sub/model.py")
    assert load(path).module.fc.out_features == 6
    assert os.fspath(tmp_path / "sub") in sys.path


def test_dataclasses_and_two_files_of_one_name(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n" + HEAD
    text += "@dataclass\nclass C:\n    n: int = {}\nmodel = Net(C().n)\ninputs = torch.ones(1, 2)\n"
    first, second = (write(tmp_path, text.replace("{}", str(n)), f"{n}/model.py") for n in (3, 4))
    assert load(first).module.fc.out_features == 3
    assert load(second).module.fc.out_features == 4
    assert load(first).module.fc.out_features == 3


def test_a_file_named_like_a_standard_module_does_not_shadow_it(tmp_path: Path) -> None:
    import json

    load(write(tmp_path, HEAD + "model = Net()\ninputs = torch.ones(1, 2)", "json.py"))
    assert sys.modules["json"] is json


def test_seeds(tmp_path: Path) -> None:
    tail = """
import random, numpy
at_import = (random.random(), numpy.random.rand(), torch.rand(1).item())
def get_model(): return Net()
def get_inputs(): return torch.rand(1, 2)
"""
    path = write(tmp_path, HEAD + tail)
    one, two, other = load(path), load(path), load(path, seed=1)
    assert torch.equal(one.module.fc.weight, two.module.fc.weight)
    assert torch.equal(one.args[0], two.args[0])
    assert not torch.equal(one.module.fc.weight, other.module.fc.weight)
    assert not torch.equal(one.args[0], other.args[0])


def test_what_the_file_prints_is_not_our_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(write(tmp_path, HEAD + "print('loading')\nmodel = Net()\ninputs = torch.ones(1, 2)"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loading" in captured.err


def test_train_mode_is_tested_in_eval_on_a_copy(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    loaded = prepare(module, torch.ones(1, 2))
    assert module.training
    assert not any(part.training for part in loaded.module.modules())
    assert loaded.module[0].weight is module[0].weight
    assert "train mode" in loaded.notes[0]
    assert loaded.label == "Sequential"
    again = prepare(loaded.module, torch.ones(1, 2))
    assert again.module is loaded.module
    assert again.notes == ()


def test_one_part_in_train_mode_is_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    module[1].train()
    assert "(1)" in prepare(module, torch.ones(1, 2)).notes[0]


# Bad input: what happened, and what to do next.


def test_no_such_file(tmp_path: Path) -> None:
    write(tmp_path, "", "model.py")
    error = fails(ModelFileError, str(tmp_path / "modle.py"))
    assert "model.py" in error.hint
    fails(ModelFileError, "nowhere/at_all.py")
    fails(ModelFileError, "no_such_module_here:Net")
    fails(ModelFileError, "torch.no_such_module_here:Net")
    assert "folder" in fails(ModelFileError, str(tmp_path)).message
    assert "not a Python file" in fails(ModelFileError, write(tmp_path, "", "weights.pt")).message
    assert "not a name" in fails(ModelFileError, write(tmp_path, "") + ":1x").message


def test_raises_on_import(tmp_path: Path) -> None:
    write(tmp_path, "def boom():\n    raise ValueError('of mine')\n", "mine.py")
    error = fails(ModelFileError, write(tmp_path, "import mine\n\nmine.boom()\n"))
    assert "of mine" in error.message
    lines = [line for line in error.detail.splitlines() if line.startswith("  File")]
    assert [line.rpartition("in ")[2] for line in lines] == ["<module>", "boom"]
    assert 'model.py", line 3' in lines[0]
    assert "importlib" not in error.detail
    assert "bisect_litert/" not in error.detail


def test_what_is_missing_on_import_says_where_it_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import not_there.at_all\n")
    with pytest.raises(ModelFileError, match="No module named 'not_there'") as caught:
        load(str(tmp_path / "m.py"))
    assert f"runs in {sys.prefix}" in caught.value.hint
    (tmp_path / "n.py").write_text("open('weights.pt')\n")
    with pytest.raises(ModelFileError, match="FileNotFoundError") as caught:
        load(str(tmp_path / "n.py"))
    assert str(Path.cwd()) in caught.value.hint


def test_a_crash_on_import_says_its_line(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import os\n\nos.abort()\n")
    code = "from bisect_litert.models.model_file import load; load('m.py')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode < 0
    assert 'm.py", line 3' in ended.stderr


def test_syntax_error_and_exit_on_import(tmp_path: Path) -> None:
    error = fails(ModelFileError, write(tmp_path, "x = (\n"))
    assert "SyntaxError" in error.detail
    assert "bisect_litert/" not in error.detail
    assert "sys.exit" in fails(ModelFileError, write(tmp_path, "raise SystemExit(3)")).message


def test_a_module_that_raises_is_not_called_missing(tmp_path: Path) -> None:
    write(tmp_path, "import not_installed_here", "broken.py")
    error = fails(ModelFileError, "broken:Net")
    assert "not_installed_here" in error.message
    assert "broken.py" in error.detail


def test_factory_that_raises(tmp_path: Path) -> None:
    error = fails(ModelFileError, write(tmp_path, HEAD + "def get_model(): return 1 / 0"))
    assert "get_model() in model.py failed: ZeroDivisionError" in error.message
    assert "in get_model" in error.detail
    error = fails(ModelFileError, write(tmp_path, HEAD + "model = Net()\ndef get_inputs(): return 1 / 0"))
    assert "get_inputs()" in error.message


def test_no_model(tmp_path: Path) -> None:
    error = fails(ModelFileError, write(tmp_path, HEAD + "inputs = torch.ones(1, 2)"))
    assert "model = " in error.hint
    assert "It defines: Net" in error.hint


def test_no_inputs(tmp_path: Path) -> None:
    error = fails(ModelFileError, write(tmp_path, HEAD + "model = Net()"))
    assert "inputs = (" in error.hint
    assert "(x, mask)" in error.hint


def test_name_not_found(tmp_path: Path) -> None:
    error = fails(ModelFileError, write(tmp_path, HEAD + "small_net = Net()") + ":smal_net")
    assert "small_net" in error.hint


def test_factory_that_needs_arguments(tmp_path: Path) -> None:
    text = HEAD + "class Sized(Net):\n    def __init__(self, width): super().__init__(width)\n"
    error = fails(ModelFileError, write(tmp_path, text) + ":Sized")
    assert "(width)" in error.message
    fails(InputsError, write(tmp_path, HEAD + "model = Net()\ndef get_inputs(batch): return torch.ones(batch, 2)"))


@pytest.mark.parametrize("value", ["3", "Net().state_dict()", "[Net]", "lambda: None"])
def test_not_a_module(tmp_path: Path, value: str) -> None:
    error = fails(ModelFileError, write(tmp_path, HEAD + f"model = {value}\ninputs = torch.ones(1, 2)"))
    assert "not a torch.nn.Module" in error.message
    assert ("load_state_dict" in error.hint) == ("state_dict" in value)


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ("{'y': torch.ones(1, 2)}", "missing a required argument: 'x'"),
        ("(torch.ones(1, 2),) * 3", "too many positional"),
        ("()", "missing"),
        ("'abc'", "str"),
        ("{1: torch.ones(1)}", "not a name"),
        ("None", "NoneType"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path: Path, inputs: str, word: str) -> None:
    error = fails(InputsError, write(tmp_path, HEAD + f"model = Net()\ninputs = {inputs}"))
    assert word in error.message


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("inputs = torch.tensor([[1., float('nan')]])", ["input x", "NaN (1 of 2"]),
        ("inputs = torch.tensor([[1., float('inf')]])", ["input x", "infinity"]),
        ("inputs = (torch.ones(1, 2), torch.full((1, 2), float('nan')))", ["input mask"]),
        ("inputs = {'x': torch.ones(1, 2, dtype=torch.complex64)}", ["input x", "complex64"]),
        ("inputs = torch.ones(1, 2).half()", ["input x", "float16"]),
        ("model.fc.weight.data[0, 0] = float('nan')", ["parameter fc.weight", "NaN"]),
        ("model.register_buffer('b', torch.tensor([float('nan')]))", ["buffer b", "NaN"]),
        ("model.bfloat16()", ["parameter fc.weight", "bfloat16"]),
        ("model.half()", ["parameter fc.weight", "float16"]),
        ("model.register_buffer('b', torch.ones(1, dtype=torch.complex64))", ["buffer b", "complex64"]),
        ("model.to('meta')", ["fc.weight", "meta"]),
        ("model.lazy = nn.LazyLinear(3)", ["lazy.weight", "lazy"]),
    ],
)
def test_unfit_reference(tmp_path: Path, tail: str, words: list[str]) -> None:
    error = fails(UnfitReferenceError, write(tmp_path, HEAD + f"model = Net()\ninputs = torch.ones(1, 2)\n{tail}\n"))
    for word in words:
        assert word in error.message
    if "float16" in error.message:
        assert "model.float()" in error.hint


def test_masks_may_hold_minus_infinity(tmp_path: Path) -> None:
    tail = "model = Net()\nmodel.register_buffer('m', torch.tensor([float('-inf')]))\n"
    tail += "inputs = (torch.ones(1, 2), torch.tensor([[0., float('-inf')]]))"
    assert load(write(tmp_path, HEAD + tail)).args[1][0, 1] == float("-inf")


def test_integers_and_bools_are_fine() -> None:
    class Pick(nn.Module):
        def forward(self, ids: torch.Tensor, keep: torch.Tensor, n: int) -> torch.Tensor:
            return ids * keep * n

    loaded = prepare(Pick().eval(), (torch.tensor([1]), torch.tensor([True]), 3))
    assert loaded.args == (torch.tensor([1]), torch.tensor([True]))
    assert loaded.module(*loaded.args).tolist() == [3]


# --inputs


def overridden(tmp_path: Path, inputs: str, **arrays: np.ndarray) -> LoadedModel:
    np.savez(tmp_path / "x.npz", **arrays)
    path = write(tmp_path, HEAD + f"model = Net()\n{inputs}\n")
    return load(path, inputs_path=tmp_path / "x.npz")


ONE = np.full((1, 2), 5.0, np.float32)


@pytest.mark.parametrize("key", ["x", "0", "arr_0"])
@pytest.mark.parametrize("inputs", ["inputs = torch.ones(1, 2)", "inputs = {'x': torch.ones(1, 2)}", ""])
def test_override_by_name_or_position(tmp_path: Path, key: str, inputs: str) -> None:
    loaded = overridden(tmp_path, inputs, **{key: ONE})
    (x,) = [*loaded.args, *loaded.kwargs.values()]
    assert torch.equal(x, torch.from_numpy(ONE))


def test_override_only_what_is_named(tmp_path: Path) -> None:
    loaded = overridden(tmp_path, "inputs = (torch.ones(1, 2), torch.zeros(1, 2))", mask=ONE)
    assert float(loaded.args[0].sum()) == 2
    assert float(loaded.args[1].sum()) == 10


def test_override_adds_an_optional_parameter(tmp_path: Path) -> None:
    loaded = overridden(tmp_path, "inputs = torch.ones(1, 2)", mask=ONE)
    assert list(loaded.kwargs) == ["mask"]
    loaded = overridden(tmp_path, "inputs = torch.ones(1, 2)", arr_1=ONE)
    assert list(loaded.kwargs) == ["mask"]


def test_override_keeps_the_dtype_and_says_so(tmp_path: Path) -> None:
    loaded = overridden(tmp_path, "inputs = torch.ones(1, 2)", x=ONE.astype(np.float64))
    assert loaded.args[0].dtype == torch.float32
    assert "float64" in loaded.notes[0]


def test_npy_is_the_first_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ONE)
    loaded = load(write(tmp_path, HEAD + "model = Net()\ninputs = torch.ones(1, 2)"), inputs_path=tmp_path / "x.npy")
    assert float(loaded.args[0].sum()) == 10


def test_override_of_spread_arguments(tmp_path: Path) -> None:
    text = "import torch\nclass Add(torch.nn.Module):\n    def forward(self, x, *more): return x + sum(more)\n"
    path = write(tmp_path, text + "model = Add()\ninputs = (torch.ones(1, 2), torch.ones(1, 2))\n")
    np.savez(tmp_path / "x.npz", arr_1=ONE)
    assert float(load(path, inputs_path=tmp_path / "x.npz").args[1].sum()) == 10


@pytest.mark.parametrize("key", ["y", "2", "arr_7"])
def test_override_of_an_unknown_input(tmp_path: Path, key: str) -> None:
    np.savez(tmp_path / "x.npz", **{key: ONE})
    path = write(tmp_path, HEAD + "model = Net()\ninputs = torch.ones(1, 2)")
    error = fails(InputsError, path, inputs_path=tmp_path / "x.npz")
    assert "x, mask" in error.hint


def test_unreadable_inputs_file(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "model = Net()\ninputs = torch.ones(1, 2)")
    fails(InputsError, path, inputs_path=tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK not really")
    fails(InputsError, path, inputs_path=tmp_path / "bad.npz")
    (tmp_path / "text.txt.npz").write_text("hello")
    said = fails(InputsError, path, inputs_path=tmp_path / "text.txt.npz").message
    assert said.endswith(": it is in neither format.")  # numpy takes it for a pickle
    np.savez(tmp_path / "objects.npz", x=np.array([None, {}], dtype=object))
    fails(InputsError, path, inputs_path=tmp_path / "objects.npz")
    np.savez(tmp_path / "text.npz", x=np.array(["a"]))
    fails(InputsError, path, inputs_path=tmp_path / "text.npz")
    np.savez(tmp_path / "nan.npz", x=ONE * np.nan)
    fails(UnfitReferenceError, path, inputs_path=tmp_path / "nan.npz")


def test_fractions_do_not_become_integers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=ONE + 0.5)
    path = write(tmp_path, HEAD + "model = Net()\ninputs = torch.ones(1, 2, dtype=torch.int64)")
    assert "int64" in fails(InputsError, path, inputs_path=tmp_path / "x.npz").message


def test_a_class_of_a_package_that_needs_arguments_goes_into_a_file_of_ones_own() -> None:
    with pytest.raises(ModelFileError, match=r"Linear in torch\.nn needs arguments") as caught:
        load("torch.nn:Linear")
    assert "`from torch.nn import Linear; model = Linear(...)`" in caught.value.hint


def test_what_packages_say_of_each_other_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchao", "torch.utils._pytree"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.StreamHandler(sys.stdout)])
    text = (
        "import logging, torch\n"
        "logging.getLogger('torchao').warning('no kernel')\n"
        "logging.getLogger('torch.utils._pytree').warning('deprecated')\n"
        "model, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
    )
    (tmp_path / "m.py").write_text(text, encoding="utf-8")
    load(str(tmp_path / "m.py"))
    assert capsys.readouterr() == ("", "")
    logging.getLogger("torchao").warning("heard")
    assert "heard" in capsys.readouterr().out
