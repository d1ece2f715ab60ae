from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from bisect_litert.models import eager


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = self.a
        self.register_buffer("count", torch.zeros(1))
        self.history: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history.append(float(self.count))
        return self.b(x) + self.count


def test_copy_keeps_parameters_and_separates_state() -> None:
    module = Stateful()
    copy = eager.copy_module(module)
    copy(torch.zeros(1, 2))
    assert copy.a.weight is module.a.weight
    assert copy.a is copy.b
    assert copy.a is not module.a
    assert float(module.count) == 0
    assert module.history == []


def test_copy_without_sharing() -> None:
    module = Stateful()
    copy = eager.copy_module(module, share_parameters=False)
    copy.double()
    assert module.a.weight.dtype == torch.float32
    assert copy.a.weight.dtype == torch.float64


def test_copy_of_what_deepcopy_refuses() -> None:
    module = Stateful()
    module.lock = threading.Lock()
    module.scale = torch.ones(2, requires_grad=True) * 2  # carries a graph
    module.parts = [module.a, module.lock]
    copy = eager.copy_module(module)
    assert copy.lock is module.lock
    assert copy.a is not module.a
    assert copy.a is copy.b
    assert copy.a.weight is module.a.weight
    copy(torch.zeros(1, 2))
    assert float(module.count) == 0
    assert module.history == []
    assert torch.equal(copy.scale, module.scale)


def test_copied_inputs_are_separate_and_keep_what_is_shared() -> None:
    x = torch.zeros(2)
    args, kwargs = eager.copy_inputs(((x, [x]), {"n": 3, "f": threading.Lock()}))
    args[0].add_(1)
    assert float(x.sum()) == 0
    assert args[1][0] is args[0]
    assert kwargs["n"] == 3


def test_call_needs_no_grad_and_keeps_the_callers_random_state() -> None:
    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            return x + torch.rand(2)

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = eager.call(Draws(), (torch.zeros(2),), {}, seed=1)
    two = eager.call(Draws(), (torch.zeros(2),), {}, seed=1)
    assert torch.equal(one, two)
    assert torch.equal(torch.rand(1), expected)


def test_the_fused_attention_path_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a, **k: used.append(1) or fused(*a, **k))
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.rand(1, 3, 8)
    with torch.no_grad():
        layer(x)
    assert used == [1], "torch no longer takes the fused path here; the next assertion would prove nothing"
    eager.call(layer, (x,), {})
    assert used == [1]
    assert torch.backends.mha.get_fastpath_enabled()


def test_prints_of_the_model_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    class Prints(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            print("hello")
            return x

    eager.call(Prints(), (torch.zeros(1),), {})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "hello\n"


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (torch.tensor([1.5], dtype=torch.bfloat16), "float32"),
        (torch.tensor([1.5], dtype=torch.float16), "float16"),
        (torch.tensor([True]), "bool"),
        (torch.tensor(3), "int64"),
        (torch.eye(2).to_sparse(), "float32"),
        (torch.tensor([1 + 2j]).conj(), "complex64"),
        (torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8), "float32"),
    ],
)
def test_to_numpy(tensor: torch.Tensor, dtype: str) -> None:
    array = eager.to_numpy(tensor)
    assert array.dtype.name == dtype
    assert array.shape == tuple(tensor.shape)


def test_to_numpy_is_a_contiguous_copy() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    array = eager.to_numpy(tensor.T)
    tensor.zero_()
    assert array.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(array, [[0, 3], [1, 4], [2, 5]])


def test_the_users_traceback_has_no_frame_of_ours_or_of_torchs_plumbing() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second\nline") from error

    with pytest.raises(ValueError, match="second") as caught:
        eager.call(nn.Sequential(Inner()), (torch.zeros(1),), {})
    text = eager.user_traceback(caught.value)
    assert "eager.py" not in text.replace("test_eager.py", "")
    assert "_call_impl" not in text
    assert "test_eager.py" in text
    assert "KeyError: 'first'" in text
    assert eager.one_line(caught.value) == "ValueError: second line"


def test_seed_all() -> None:
    import random

    eager.seed_all(3)
    first = (random.random(), np.random.rand(), float(torch.rand(1)))
    eager.seed_all(3)
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == first


def test_structure_and_eager_import_without_torch() -> None:
    import subprocess

    modules = ("structure", "eager", "blocks", "reference", "model_file")
    code = "".join(f"import bisect_litert.models.{name}; " for name in modules)
    code += "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
