"""Makes onnx2tf.tflite beside it, with onnx2tf, from the weights in onnx2tf_weights.py.

In an environment of its own: `pip install onnx2tf onnx onnxsim onnx_graphsurgeon sng4onnx tf_keras psutil`, then
`python tests/data/shipped/make_onnx2tf.py`. The committed file was made with onnx2tf 1.29.24, onnx 1.19.1 and
TensorFlow 2.19.0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx2tf.onnx2tf
from onnx import TensorProto, helper, numpy_helper
from onnx2tf.utils import common_functions

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from onnx2tf_weights import weights  # noqa: E402


def main() -> None:
    values = weights()
    constants = [numpy_helper.from_array(value, name) for name, value in values.items()]
    nodes, x = [], "image"
    for i in range(2):
        at = f"/stage/stage.{i}"
        names = [x, f"stage.{i}.conv.weight", f"stage.{i}.conv.bias"]
        nodes.append(helper.make_node("Conv", names, [f"{at}/conv"], name=f"{at}/conv/Conv", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"{at}/conv"], [f"{at}/act"], name=f"{at}/act/Relu"))
        x = f"{at}/act"
    # A normalisation over channels, by hand, whose squares pass 65504.
    nodes.append(helper.make_node("Mul", [x, "norm.gain"], ["/norm/scaled"], name="/norm/Mul"))
    nodes.append(helper.make_node("Mul", ["/norm/scaled", "/norm/scaled"], ["/norm/square"], name="/norm/Mul_1"))
    nodes.append(helper.make_node("ReduceMean", ["/norm/square"], ["/norm/mean"], name="/norm/ReduceMean", axes=[1]))
    nodes.append(helper.make_node("Add", ["/norm/mean", "norm.eps"], ["/norm/safe"], name="/norm/Add"))
    nodes.append(helper.make_node("Sqrt", ["/norm/safe"], ["/norm/root"], name="/norm/Sqrt"))
    nodes.append(helper.make_node("Div", ["/norm/scaled", "/norm/root"], ["/norm/out"], name="/norm/Div"))
    nodes.append(helper.make_node("GlobalAveragePool", ["/norm/out"], ["/pool"], name="/pool/GlobalAveragePool"))
    nodes.append(helper.make_node("Flatten", ["/pool"], ["/flat"], name="/Flatten"))
    nodes.append(helper.make_node("Gemm", ["/flat", "head.weight", "head.bias"], ["logits"], name="/head", transB=1))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 4])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    # It fetches a picture from the network to check its result with; any numbers do.
    picture = np.random.default_rng(0).random((20, 128, 128, 3), dtype=np.float32)
    for module in (common_functions, onnx2tf.onnx2tf):
        module.download_test_image_data = lambda: picture
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        onnx2tf.convert(
            input_onnx_file_path=f"{folder}/model.onnx",
            output_folder_path=folder,
            non_verbose=True,
            copy_onnx_input_output_names_to_tflite=True,
        )
        (HERE / "onnx2tf.tflite").write_bytes((Path(folder) / "model_float32.tflite").read_bytes())


if __name__ == "__main__":
    main()
