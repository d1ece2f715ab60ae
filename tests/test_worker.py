"""The worker as a file copied alone: real LiteRT, in a process of its own."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bisect_litert.devices import worker

DATA = Path(__file__).parent / "data"
RNG = np.random.default_rng(0)
INPUTS: dict[str, dict[str, np.ndarray]] = {
    "mlp": {"args_0": RNG.standard_normal((3, 8))},  # float64 on purpose
    "kinds": {"args_0": RNG.standard_normal((2, 3)).astype("f4"), "args_1": np.arange(4),
              "args_2": np.array([[True, False, True], [False, False, True]])},
    "scalar": {"args_0": np.ones((2, 3), "f4"), "args_1": np.array(3.0, "f4")},
    "rank5": {"args_0": RNG.standard_normal((4, 12)).astype("f4")},
    "cast": {"args_0": RNG.standard_normal((4, 12)).astype("f4")},
    "unused": {"args_0": np.ones((2, 3), "f4"), "args_1": np.ones(2, "f4")},
    "int64": {"args_0": RNG.standard_normal((4, 8)).astype("f4")},
}  # fmt: skip
INPUTS["repeated_output"] = INPUTS["mlp"]
INPUTS["no_signature"] = {"serving_default_args_0": INPUTS["mlp"]["args_0"]}
INPUTS["tapped_cast"] = INPUTS["cast"]
INPUTS["many"] = {"args_0": np.ones((2, 3), "f4")}


def many_outputs(path: Path, count: int) -> None:
    """A chain of `count` additions, every one an output."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model(str(DATA / "unused.tflite"))
    graph, signature = model.subgraphs[0], model.signatureDefs[0]
    names = [flatbuffer_utils.opcode_to_name(model, op.opcodeIndex) for op in graph.operators]
    add = graph.operators[names.index("ADD")]
    one = next(index for index in add.inputs if graph.tensors[index].buffer and model.buffers[
        graph.tensors[index].buffer].data is not None)  # fmt: skip
    graph.inputs, signature.inputs = [graph.inputs[0]], signature.inputs[:1]
    graph.operators, graph.outputs, signature.outputs = [], [], []
    last = graph.inputs[0]
    for index in range(count):
        tensor, op, output = schema.TensorT(), schema.OperatorT(), schema.TensorMapT()
        tensor.name, tensor.shape, tensor.type = f"add_{index}", [2, 3], schema.TensorType.FLOAT32
        graph.tensors.append(tensor)
        op.opcodeIndex, op.builtinOptionsType, op.builtinOptions = (
            add.opcodeIndex,
            add.builtinOptionsType,
            add.builtinOptions,
        )
        op.inputs, op.outputs = [last, one], [len(graph.tensors) - 1]
        last = op.outputs[0]
        graph.operators.append(op)
        graph.outputs.append(last)
        output.name, output.tensorIndex = f"output_{index}", last
        signature.outputs.append(output)
    flatbuffer_utils.write_model(model, str(path))


class Run:
    """The responses of one worker process that ran everything below."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.request, self.response = folder / "request", folder / "response"
        self.request.mkdir()
        script = shutil.copy(worker.__file__, folder / "alone.py")
        many_outputs(self.request / "many.tflite", 384)
        jobs: list[dict[str, Any]] = []
        for model, inputs in INPUTS.items():
            if not (self.request / f"{model}.tflite").exists():
                shutil.copy(DATA / f"{model}.tflite", self.request)
            for name, array in inputs.items():
                np.save(self.request / f"{model}.{name}.npy", array)
            files = {name: f"{model}.{name}.npy" for name in inputs}
            for accelerator in ("cpu", "interpreter", "xnnpack", "gpu"):
                jobs.append(
                    {
                        "id": f"{model}-{accelerator}",
                        "model": f"{model}.tflite",
                        "accelerator": accelerator,
                        "inputs": files,
                        "tensors": "all",
                    }
                )
        mlp = {"model": "mlp.tflite", "accelerator": "gpu", "inputs": {"args_0": "mlp.args_0.npy"}}
        rank5 = {"model": "rank5.tflite", "accelerator": "gpu", "inputs": {"args_0": "rank5.args_0.npy"}}
        jobs += [
            {**mlp, "id": "fp32", "fp32": True},
            {**mlp, "id": "end-node", "env": {"LITERT_GPU_DEBUG_END_NODE": "0"}},
            {**mlp, "id": "after-end-node"},
            {**mlp, "id": "exclude-all", "env": {"LITERT_GPU_DEBUG_EXCLUDE_NODES": "0,1,2"}},
            {**rank5, "id": "no-fallback", "fallback": False},
            {**rank5, "id": "both", "accelerator": "gpu+cpu"},
            {**mlp, "id": "bad-shape", "inputs": {"args_0": "cast.args_0.npy"}},
            {**mlp, "id": "bad-dtype", "inputs": {"args_0": "complex.npy"}},
            {**mlp, "id": "missing-input", "inputs": {}},
            {**mlp, "id": "missing-model", "model": "nowhere.tflite"},
            {**mlp, "id": "bad-accelerator", "accelerator": "npu"},
            {**mlp, "id": "last"},
        ]  # fmt: skip
        np.save(self.request / "complex.npy", np.ones((3, 8), np.complex64))
        (self.request / "request.json").write_text(json.dumps({"jobs": jobs}))
        self.ids = [job["id"] for job in jobs]
        self.process = subprocess.run(
            [python, script, self.request, self.response],
            env={name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"},
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )

    def answer(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((self.response / name / "response.json").read_text())
        return answer

    def output(self, name: str, output: str = "output_0") -> np.ndarray:
        entry = self.answer(name)["outputs"][output]
        path = self.response / entry["file"]
        array: np.ndarray
        if "offset" in entry:
            array = np.fromfile(path, entry["dtype"], math.prod(entry["shape"]), offset=entry["offset"])
            return array.reshape(entry["shape"])
        array = np.load(path)
        return array

    def log(self, name: str) -> str:
        return (self.response / self.answer(name)["log"]).read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("worker"))


@pytest.fixture
def gpu(run: Run) -> Run:
    if not run.answer("last")["adapter_line"]:
        pytest.skip("no GPU that LiteRT accepts; scripts/vulkan installs a software one")
    return run


def test_every_job_answers_and_the_process_ends_well(run: Run) -> None:
    assert run.process.returncode == 0, run.process.stderr
    assert run.process.stdout == ""
    assert all((run.response / name / "started").exists() and run.answer(name) for name in run.ids)


def test_cpu_jobs_leave_the_gpu_alone(run: Run) -> None:
    assert "Created TensorFlow Lite XNNPACK delegate" in run.log("mlp-cpu")
    assert "WebGPU environment" not in run.log("mlp-cpu")


def test_cpu_and_interpreter_agree(run: Run) -> None:
    for model in ("mlp", "rank5", "cast", "unused"):
        np.testing.assert_allclose(run.output(f"{model}-cpu"), run.output(f"{model}-interpreter"), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run.output("scalar-cpu"), np.full((2, 3), 3, "f4"))


def test_gpu_is_fp16_and_fp32_when_asked(gpu: Run) -> None:
    cpu = gpu.output("mlp-cpu")
    assert 1e-5 < np.abs(gpu.output("mlp-gpu") - cpu).max() < 1e-2
    assert np.abs(gpu.output("fp32") - cpu).max() < 1e-6
    assert gpu.output("last").tobytes() == gpu.output("mlp-gpu").tobytes()


def test_the_interpreter_with_xnnpack_gives_the_bits_of_litert_on_the_cpu(run: Run) -> None:
    delegated, plain = run.output("mlp-xnnpack"), run.output("mlp-interpreter")
    assert delegated.tobytes() == run.output("mlp-cpu").tobytes()
    assert run.answer("mlp-interpreter")["tensors"]
    assert not run.answer("mlp-xnnpack")["tensors"]
    np.testing.assert_allclose(delegated, plain, rtol=1e-5)


@pytest.mark.parametrize("accelerator", ["cpu", "interpreter", "xnnpack", "gpu"])
def test_every_kind_of_output(run: Run, accelerator: str) -> None:
    name = f"kinds-{accelerator}"
    assert run.answer(name)["status"] == (
        "ok" if accelerator != "gpu" or run.answer("last")["adapter_line"] else "failed"
    )
    if run.answer(name)["status"] == "failed":
        pytest.skip("no GPU")
    x, i, m = INPUTS["kinds"].values()
    y = np.where(m, x, -x) * 2
    np.testing.assert_allclose(run.output(name), y, atol=5e-3)
    np.testing.assert_array_equal(run.output(name, "output_1"), y > 0)
    np.testing.assert_array_equal(run.output(name, "output_2"), i + 3)
    np.testing.assert_allclose(run.output(name, "output_3"), y.sum(), atol=2e-2)
    np.testing.assert_array_equal(run.output(name, "output_4"), 6)
    outputs = run.answer(name)["outputs"]
    assert [entry["dtype"] for entry in outputs.values()] == ["float32", "bool", "int32", "float32", "int32"]
    assert run.output(name, "output_3").shape == ()
    assert [entry["unwritten"] for entry in outputs.values()] == [0] * 5


def test_int64_outputs(run: Run) -> None:
    expected = INPUTS["int64"]["args_0"].argmax(-1)
    for name in ("int64-cpu", "int64-interpreter"):
        assert run.output(name).dtype == np.int64
        np.testing.assert_array_equal(run.output(name), expected)
        np.testing.assert_array_equal(run.output(name, "output_1"), expected + 5)


def test_hundreds_of_outputs_go_by_name(run: Run) -> None:
    names = ["many-cpu", "many-interpreter"] + (["many-gpu"] if run.answer("last")["adapter_line"] else [])
    for name in names:
        outputs = run.answer(name)["outputs"]
        assert len(outputs) == 384
        assert sum(entry["unwritten"] for entry in outputs.values()) == 0
        for k in (0, 1, 2, 10, 383):
            np.testing.assert_array_equal(run.output(name, f"output_{k}"), np.full((2, 3), k + 2, "f4"))


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_the_sentinel_marks_what_was_never_written(run: Run, accelerator: str) -> None:
    name = f"repeated_output-{accelerator}"
    if run.answer(name)["status"] == "failed":
        pytest.skip("no GPU")
    outputs = run.answer(name)["outputs"]
    assert {key: entry["unwritten"] for key, entry in outputs.items()} == {"output_0": 12, "output_1": 0}
    assert np.isnan(run.output(name)).all()
    np.testing.assert_array_equal(run.output(name, "output_1"), run.output(f"mlp-{accelerator}"))


def test_a_refusal_falls_back_and_says_so(gpu: Run) -> None:
    answer = gpu.answer("rank5-gpu")
    assert answer["status"] == "ok"
    assert answer["fell_back"] is True
    assert "Some ops are not accelerated" in answer["refused_alone"]
    assert "will run on the GPU, and the remaining" in gpu.log("rank5-gpu")
    refused = gpu.answer("no-fallback")
    assert refused["status"] == "failed"
    assert "Some ops are not accelerated" in refused["error"]
    both = gpu.answer("both")
    assert both["fell_back"] is False
    assert gpu.output("both").tobytes() == gpu.output("rank5-gpu").tobytes()
    assert not gpu.answer("mlp-gpu")["fell_back"]


def test_a_rank_0_input_runs_on_the_cpu_only(gpu: Run) -> None:
    assert gpu.answer("scalar-gpu")["fell_back"] is True
    assert "No operations will run on the GPU" in gpu.log("scalar-gpu")
    np.testing.assert_array_equal(gpu.output("scalar-gpu"), np.full((2, 3), 3, "f4"))


def test_the_delegate_honours_its_switches_in_a_running_process(gpu: Run) -> None:
    assert "Restricting WebGPU delegation from node 0 to node 0" in gpu.log("end-node")
    whole, cpu = gpu.output("mlp-gpu"), gpu.output("mlp-cpu")
    assert gpu.output("end-node").tobytes() not in (whole.tobytes(), cpu.tobytes())
    assert gpu.output("exclude-all").tobytes() == cpu.tobytes()
    assert gpu.output("after-end-node").tobytes() == whole.tobytes()  # restored
    assert gpu.answer("end-node")["fell_back"] is False


def test_validation_errors_are_in_the_log_of_an_ok_job(gpu: Run) -> None:
    assert gpu.answer("tapped_cast-gpu")["status"] == "ok"
    assert "Validation error: " in gpu.log("tapped_cast-gpu")
    assert not gpu.output("tapped_cast-gpu").any()
    assert "Validation error: " not in gpu.log("cast-gpu")


def test_the_interpreter_keeps_what_ops_write_and_no_constants(run: Run) -> None:
    answer = run.answer("mlp-interpreter")
    arrays = {
        index: np.memmap(run.response / e["file"], e["dtype"], "r", e["offset"], tuple(e["shape"]))
        for index, e in answer["tensors"].items()
    }
    assert all(entry["offset"] % 64 == 0 for entry in answer["tensors"].values())
    np.testing.assert_array_equal(arrays["0"], INPUTS["mlp"]["args_0"].astype("f4"))
    assert len(arrays) == 4  # the input and three ops
    assert all(array.shape[0] == 3 for array in arrays.values())  # weights have 8 or 4 rows
    np.testing.assert_array_equal(arrays[max(arrays, key=int)], run.output("mlp-interpreter"))


def test_unused_inputs_constant_outputs_and_no_signature(run: Run) -> None:
    np.testing.assert_array_equal(run.output("unused-cpu", "output_1"), np.ones(3, "f4"))
    output = next(iter(run.answer("no_signature-cpu")["outputs"]))
    np.testing.assert_array_equal(run.output("no_signature-cpu", output), run.output("mlp-cpu"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad-shape", "input 'args_0' has shape [4, 12], the model wants [3, 8]"),
        ("bad-dtype", "input 'args_0' is complex64, the model wants float32"),
        ("missing-input", "input 'args_0' is missing; the model wants args_0"),
        ("missing-model", "Failed to load model from file"),
        ("bad-accelerator", "unknown accelerator 'npu'"),
    ],
)
def test_a_bad_job_is_an_answer_and_the_next_one_runs(gpu: Run, name: str, message: str) -> None:
    answer = gpu.answer(name)
    assert answer["status"] == "failed"
    assert message in answer["error"]
    assert answer["outputs"] == {}
    assert gpu.answer("last")["status"] == "ok"


def test_inputs_that_do_not_survive_the_models_dtype() -> None:
    with pytest.raises(worker.JobError, match="cannot hold"):
        worker.fit_input("i", np.array([2**40]), np.dtype("int32"), (1,))
    with pytest.raises(worker.JobError, match="is float32, the model wants int32"):
        worker.fit_input("i", np.ones(1, "f4"), np.dtype("int32"), (1,))
    assert worker.fit_input("b", np.array(True), np.dtype("bool"), ()).shape == ()
    assert worker.fit_input("t", np.ones((3, 2), "f4").T, np.dtype("f4"), (2, 3)).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "bool", "uint8"])
def test_the_sentinel_counts_itself_and_nothing_else(dtype: str) -> None:
    kind = np.dtype(dtype)
    raw = worker.sentinel(kind, 5)
    assert raw.nbytes == 5 * kind.itemsize
    assert worker.count_unwritten(raw, kind) == 5
    written = raw.copy()
    written[: kind.itemsize] = 0
    assert worker.count_unwritten(written, kind) == (4 if kind.kind == "f" else 0)
    if kind.kind == "f":
        assert np.isnan(raw.view(kind)).all()
        nans = np.array([np.nan, -np.nan, np.inf]).astype(kind)
        assert worker.count_unwritten(nans.view(np.uint8), kind) == 0


def test_the_worker_imports_nothing_of_ours() -> None:
    code = "import sys, worker; print([m for m in sys.modules if m.startswith(('bisect_litert', 'torch', 'ai_edge'))])"
    environment = {**os.environ, "PYTHONPATH": str(Path(worker.__file__).parent)}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
