"""A conversion is taken from the store exactly when the converter would make the same one."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bisect_litert.errors import ConversionError
from bisect_litert.graphs import stored_conversion
from bisect_litert.graphs.conversion import convert
from bisect_litert.graphs.conversion_key import conversion_key
from bisect_litert.graphs.graph import Graph
from bisect_litert.graphs.store import Store
from bisect_litert.graphs.stored_conversion import Conversion, Converter
from bisect_litert.programs.exported import ExportedModel


class Net(torch.nn.Module):
    """A bit of everything a key has to see."""

    def __init__(self, factor: float = 2.0, key: str = "out", attribute: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.plain = torch.full((4,), attribute)
        self.factor, self.key = factor, key

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.key: self.linear(x) * self.factor + self.offset * self.plain}


INPUT = torch.zeros(2, 4)


def key_of(module: torch.nn.Module, *args: torch.Tensor) -> str | None:
    return conversion_key(torch.export.export(module.eval(), args or (INPUT,), strict=False))


def changed(**how: Any) -> Net:
    return Net(**how)


def with_weight() -> Net:
    net = Net()
    net.linear.weight.data[3, 3] += 1e-6
    return net


def with_buffer() -> Net:
    net = Net()
    net.offset[0] = -1.0
    return net


class Renamed(Net):
    """The same arithmetic, under a class name that ends up in the tensors' names."""


def test_the_same_program_has_the_same_key() -> None:
    assert key_of(Net()) == key_of(Net())
    assert key_of(Net(), INPUT + 1) == key_of(Net())  # the values of inputs change nothing


@pytest.mark.parametrize(
    "other",
    [
        lambda: key_of(changed(factor=2.0000000000000004)),
        lambda: key_of(changed(key="other")),
        lambda: key_of(changed(attribute=1.5)),
        lambda: key_of(with_weight()),
        lambda: key_of(with_buffer()),
        lambda: key_of(Renamed()),
        lambda: key_of(Net(), torch.zeros(3, 4)),
    ],
    ids=["number", "output name", "attribute", "weight", "buffer", "class", "shape"],
)
def test_another_program_has_another_key(other: Any) -> None:
    assert other() not in (None, key_of(Net()))


def test_other_versions_have_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from bisect_litert.graphs import conversion_key as module

    before = key_of(Net())
    monkeypatch.setattr(module, "_version", lambda package: "9.9" if package == "litert-converter" else "1")
    assert key_of(Net()) != before


def test_another_process_has_the_same_key() -> None:
    code = """
    import sys, torch
    sys.path.insert(0, sys.argv[1])
    from test_stored_conversion import Net, key_of
    print(key_of(Net()))
    """
    found = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert found[0] == found[1] == key_of(Net())


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Counts what is really converted."""
    made: list[Path] = []

    def counted(module: Any, args: Any, kwargs: Any, path: Path, log: Path) -> Graph:
        made.append(path)
        return convert(module, args, kwargs, path, log)

    monkeypatch.setattr(stored_conversion, "convert", counted)
    return made


def test_converts_once(tmp_path: Path, conversions: list[Path]) -> None:
    store = Store(tmp_path / "store")

    def run(module: torch.nn.Module, name: str) -> Conversion:
        return Converter(store).convert(module.eval(), (INPUT,), {}, tmp_path / f"{name}.tflite", tmp_path / "log")

    first, second = run(Net(), "first"), run(Net(), "second")
    assert (first.stored, second.stored, len(conversions)) == (False, True, 1)
    assert (tmp_path / "first.tflite").read_bytes() == (tmp_path / "second.tflite").read_bytes()
    assert second.graph.tensors == first.graph.tensors
    for entry in (tmp_path / "store").iterdir():
        entry.write_bytes(entry.read_bytes()[:-1])
    assert not run(Net(), "third").stored
    assert len(conversions) == 2
    assert run(Net(), "fourth").stored
    assert not run(with_weight(), "fifth").stored


def test_an_export_made_for_the_key_changes_nothing_in_the_conversion(tmp_path: Path, conversions: list[Path]) -> None:
    Converter(Store(tmp_path / "store")).convert(Net().eval(), (INPUT,), {}, tmp_path / "a.tflite", tmp_path / "log")
    Converter(None).convert(Net().eval(), (INPUT,), {}, tmp_path / "b.tflite", tmp_path / "log")
    assert (tmp_path / "a.tflite").read_bytes() == (tmp_path / "b.tflite").read_bytes()


def test_without_a_store_nothing_is_kept(tmp_path: Path, conversions: list[Path]) -> None:
    for name in ("a", "b"):
        Converter(None).convert(Net().eval(), (INPUT,), {}, tmp_path / name, tmp_path / "log")
    assert len(conversions) == 2


def test_what_cannot_be_exported_fails_with_the_converters_own_words(tmp_path: Path) -> None:
    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ConversionError, match="cannot convert this model"):
        Converter(Store(tmp_path / "store")).convert(
            Branches().eval(), (INPUT,), {}, tmp_path / "m.tflite", tmp_path / "log"
        )
    assert torch.export.export.__module__.startswith("torch.export")


def test_weights_whose_content_is_not_known_have_no_key() -> None:
    class Held(torch.Tensor):
        pass

    program = torch.export.export(Net().eval(), (INPUT,), strict=False)
    assert conversion_key(program) is not None
    program.constants["odd"] = torch.ones(2).as_subclass(Held)
    assert conversion_key(program) is None


def test_the_export_can_be_read_after_the_converter_had_it(tmp_path: Path) -> None:
    class Views(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return helper(self.net(x).view(2, 2, 4).transpose(1, 2))

    module, store = Views().eval(), Store(tmp_path / "store")
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    fresh = ExportedModel(module, (x,), {}, decompose=False)
    for name in ("made", "stored"):
        made = Converter(store).convert(module, (x,), {}, tmp_path / f"{name}.tflite", tmp_path / "log")
        assert made.stored == (name == "stored")
        seen = ExportedModel(module, (x,), {}, decompose=False, program=made.program)
        assert seen.nodes() == fresh.nodes()
        assert any(node.target == "aten.view.default" for node in seen.nodes())
        assert any(node.code == "return x.contiguous() * 2" for node in seen.nodes())
        expected = fresh.values()
        for key, value in seen.values().items():
            np.testing.assert_array_equal(value, expected[key])


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() * 2
