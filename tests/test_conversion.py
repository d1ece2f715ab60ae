"""What the converter says, where its chatter goes, and which value goes into which input."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.file_proxy import FileProxy
from torch import nn

from bisect_litert.errors import ConversionError
from bisect_litert.graphs.conversion import _explain, convert, input_names, quiet


def ports(*names: str) -> Any:
    return SimpleNamespace(inputs=tuple(SimpleNamespace(name=name, tensor=i) for i, name in enumerate(names)))


X, Y = torch.zeros(2), torch.ones(3)


def test_inputs_are_matched_by_name() -> None:
    found = input_names(ports("args_1", "args_0"), (X, Y), {})
    assert list(found) == ["args_1", "args_0"]
    np.testing.assert_array_equal(found["args_1"], Y.numpy())
    found = input_names(ports("mask", "args_0"), (X,), {"mask": Y})
    np.testing.assert_array_equal(found["mask"], Y.numpy())


def test_nested_inputs_are_named_after_their_path() -> None:
    state = {"h": X, "c": [Y, X]}
    found = input_names(ports("args_0_c_0", "args_0_c_1", "args_0_h"), (state,), {})
    assert [v.shape for v in found.values()] == [(3,), (2,), (2,)]


def test_without_names_order_decides() -> None:
    found = input_names(ports("a", "b"), (X,), {"k": Y})
    assert {n: v.shape for n, v in found.items()} == {"a": (2,), "b": (3,)}


def test_an_input_that_the_graph_dropped_is_left_out_by_name() -> None:
    assert list(input_names(ports("args_1"), (X, Y), {})) == ["args_1"]


def test_another_number_of_inputs_is_an_error() -> None:
    with pytest.raises(ConversionError, match="has 3 inputs") as caught:
        input_names(ports("a", "b", "c"), (X, Y), {})
    assert caught.value.hint


def test_names_of_a_real_graph(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, pair: Any, *, mask: torch.Tensor) -> torch.Tensor:
            return x * pair[0] + torch.where(mask, pair[1]["k"], x)

    args, kwargs = (X, (X + 1, {"k": X + 2})), {"mask": torch.tensor([True, False])}
    graph = convert(Both().eval(), args, kwargs, tmp_path / "m.tflite", tmp_path / "log" / "convert.log")
    found = input_names(graph, args, kwargs)
    assert set(found) == {p.name for p in graph.inputs}
    by_shape = {name: float(value.reshape(-1)[0]) for name, value in found.items()}
    assert sorted(by_shape.values()) == [0.0, 1.0, 1.0, 2.0]
    assert (tmp_path / "log" / "convert.log").read_text()


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("failed to legalize operation 'tfl.foo_bar' that was explicitly marked illegal", ["tfl.foo_bar"]),
        ("\x1b[31mNo lowering for aten.scatter_reduce.two\x1b[0m", ["aten.scatter_reduce.two", "No lowering"]),
        ('x\n  File "/home/me/model.py", line 12, in forward\n    y\nUnsupported: z', ["forward", "model.py:12"]),
        ("", ["ValueError"]),
    ],
)
def test_a_refusal_in_one_sentence(message: str, parts: list[str]) -> None:
    error = _explain(ValueError(message))
    text = f"{error.message} {error.hint}"
    for part in parts:
        assert part in text
    assert "\x1b" not in text + error.detail
    assert "/home/me" not in text + error.detail
    assert "\n" not in error.message


def test_a_line_that_cannot_be_lowered_is_led_back_to_its_modules() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    path, line = nn.ConvTranspose2d.forward.__code__.co_filename, nn.ConvTranspose2d.forward.__code__.co_firstlineno + 1
    says = f"Failed: {path}:{line}:0: error: failed to legalize operation 'mhlo.convolution' that was illegal: %54 = "
    error = _explain(ValueError(says + "x" * 300), module)
    assert f"failed to legalize operation 'mhlo.convolution' (in 1 (ConvTranspose2d), conv.py:{line})" in error.message
    assert "mhlo.convolution" in error.hint
    assert os.path.dirname(path) not in error.message + error.detail


@pytest.mark.parametrize("where", ["/opt/py/torch/fx/proxy.py:287:0", "torch/fx/proxy.py:1:2"])
def test_the_tracer_is_no_place_to_look_at(where: str) -> None:
    says = f"Failed to run converter passes: {where}: error: comparator block argument #2 should be of type 'i32'"
    error = _explain(ValueError(says))
    assert error.message.endswith("model: ValueError: comparator block argument #2 should be of type 'i32'.")
    assert "torch.topk" in error.hint
    error = _explain(ValueError(f"{where}: error: failed to legalize operation 'mhlo.convolution' that was illegal"))
    assert error.message.endswith("ValueError: failed to legalize operation 'mhlo.convolution'.")
    assert error.hint.startswith("The operation is mhlo.convolution. It comes of a convolution")


def test_a_failure_without_a_reason_says_that_there_is_none() -> None:
    error = _explain(ValueError("Failed to export flatbuffer:"))
    assert error.message.endswith("Failed to export flatbuffer, and it does not say why.")
    assert "parts of the model" in error.hint


@pytest.mark.parametrize(
    ("message", "instead"),
    [
        ("Lowering not found: aten._assert_async.msg", "torch.arange(n)"),
        ("Lowering not found: aten._embedding_bag.default", "nn.Embedding,"),
        ("torch.complex64", "real and imaginary parts"),
        ("Abstract tracer value encountered where concrete value is expected", "torch.where"),
        ("Lowering not found: aten.hypot.default", "The operation is aten.hypot.default; replace it"),
    ],
)
def test_what_to_write_instead(message: str, instead: str) -> None:
    assert instead in _explain(RuntimeError(message)).hint


def test_control_flow_on_values_is_named_as_such() -> None:
    says = "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: x).  (Size-like: none)\n\nraised error:\n"
    error = _explain(ValueError(f'{says}  File "/home/me/model.py", line 5, in forward\n    if x.sum() > 0:\n'))
    assert "data-dependent expression Eq(u0, 1) (in forward, model.py:5)." in error.message
    assert "torch.where" in error.hint


def test_half_precision_is_told_what_to_do() -> None:
    assert "float()" in _explain(TypeError("BFloat16 is not supported")).hint


def test_chatter_goes_to_the_file_down_to_the_descriptors(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "c.log"
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom bisect_litert.graphs.conversion import quiet\n"
        "print('before')\n"
        f"with quiet(Path({str(log)!r})):\n"
        "    print('python'); os.write(1, b'one\\n'); os.write(2, b'two\\n'); sys.stderr.write('err\\n')\n"
        "print('after')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("before\nafter\n", "")
    assert sorted(log.read_text().split()) == ["err", "one", "python", "two"]


def test_an_error_inside_gives_the_descriptors_back(tmp_path: Path) -> None:
    before = [os.fstat(1), os.fstat(2)]
    with pytest.raises(KeyError), quiet(tmp_path / "c.log"):
        raise KeyError
    assert [os.fstat(1), os.fstat(2)] == before


def test_what_a_live_display_hands_out_goes_to_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, shown = sys.stderr, io.StringIO()
    proxy = FileProxy(Console(file=shown), real)
    handler = logging.StreamHandler(proxy)  # as torch makes one when a model file imports it under the display
    logger = logging.getLogger("under-a-display")
    logger.addHandler(handler)
    monkeypatch.setattr(sys, "stderr", proxy)
    try:
        with quiet(tmp_path / "c.log"):
            assert sys.stderr is real
            assert handler.stream is real
        assert sys.stderr is proxy
        assert shown.getvalue() == ""
    finally:
        logger.removeHandler(handler)
