from __future__ import annotations

import pytest

from bisect_litert.files.tensor_names import parse, without_root


def spelled(name: str) -> list[str]:
    return [".".join(level.label for level in path) for path in parse(name)]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("m.Net/m.Block_b3/torch.nn.modules.linear.Linear_fc;1", ["b3.fc"]),
        ("m.Net;3", [""]),
        ("m.Net/m.Block_0/m.My_Attn_self_attn;;m.Net/m.Block_1;", ["Block_0.self_attn", "Block_1"]),
        ("m.Net/torch.nn.modules.normalization.LayerNorm_LayerNorm;12", ["LayerNorm"]),
        ("m.Net/torch.nn.modules.container.Sequential_stem/torch.nn.modules.conv.Conv2d_0;", ["stem.0"]),
        ("tests.f.<locals>.Net/tests.f.<locals>.Block_a;/tap", ["a"]),
        ("tiny_1/relu_1/Relu;tiny_1/conv_1/convolution", ["tiny_1.relu_1", "tiny_1.conv_1"]),
        ("/layer1/layer1.0/conv1/Conv", ["layer1.0.conv1"]),
        ("model_1/tf.nn.relu/Relu;Const_5", ["model_1"]),
        ("serving_default_output_0_output", []),
        ("PartitionedCall:0", []),
        ("tfl.quantize", []),
        ("arith.constant7", []),
        ("", []),
    ],
)
def test_module_paths(name: str, paths: list[str]) -> None:
    assert spelled(name) == paths


def test_lists_that_the_name_leaves_out_stay_apart() -> None:
    down, up = (parse(f"m.Net/m.{kind}_0;")[0] for kind in ("Down", "Up"))
    assert (down[0].label, up[0].label) == ("Down_0", "Up_0")


def test_the_model_itself_is_no_block() -> None:
    keras = [parse(n)[0] for n in ("tiny/conv/Conv2D", "tiny/head/MatMul", "tiny/Reshape")]
    assert without_root(keras) == 1
    wrapped = [parse(n)[0] for n in ("StatefulPartitionedCall/tiny/a/Mul", "StatefulPartitionedCall/tiny/b/Mul")]
    assert without_root(wrapped) == 2
    assert without_root([parse(n)[0] for n in ("enc/a/Mul", "dec/b/Mul")]) == 0
    assert without_root([parse("m.Net/m.Block_a;")[0]]) == 0
