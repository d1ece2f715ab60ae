"""On logs of real runs (ai-edge-litert 2.3.0, Mesa's llvmpipe, the models of tests/data), their paths replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisect_litert.devices.placement import LogFindings, RefusedOp, read, why_no_gpu

DATA = Path(__file__).parent / "data"
ADAPTER_LINE = (
    "I0000 00:00:1796078817.246207    2766 environment.cc:532] Selected adapter: NVIDIA H200, arch=hopper, "
    "vendor=nvidia, backend=Vulkan, adapterType=Discrete GPU"
)
RANK5 = "__main__.Rank5;;__main__.Rank5;;__main__.Rank5;"
REFUSED = (
    RefusedOp("RESHAPE", "Tensor dimensions must be less than 5.", (RANK5, f"{RANK5};__main__.Rank5;1")),
    RefusedOp("TRANSPOSE", "Permutation for transpose is invalid.", ()),
)


def log(name: str) -> str:
    return (DATA / f"{name}.log").read_text(encoding="utf-8")


def findings(name: str, total_ops: int, adapter_line: str = ADAPTER_LINE) -> LogFindings:
    return read(log(name), total_ops, adapter_line)


def test_the_first_gpu_log_names_the_adapter_and_the_refusals() -> None:
    found = findings("refused", 6)
    assert (found.adapter, found.software) == ("llvmpipe (LLVM 15.0.6, 256 bits)", True)
    assert (found.gpu_ops, found.cpu_ops) == (2, 4)
    assert found.line == "2 operations will run on the GPU, and the remaining 4 operations will run on the CPU."
    assert found.refused == REFUSED
    assert (found.validation_errors, found.errors, found.no_gpu_reason) == ((), (), "")


def test_later_logs_take_the_adapter_from_the_process() -> None:
    assert findings("whole", 5, adapter_line="").adapter == ""
    found = findings("whole", 5)
    assert (found.adapter, found.software) == ("NVIDIA H200", False)


def test_no_placement_line_means_everything_ran_on_the_gpu() -> None:
    found = findings("whole", 5)
    assert (found.gpu_ops, found.cpu_ops, found.line, found.refused) == (5, 0, "", ())


def test_a_cpu_job_says_nothing_about_the_gpu() -> None:
    found = findings("cpu", 5)
    assert (found.adapter, found.gpu_ops, found.cpu_ops, found.no_gpu_reason) == ("", None, None, "")


def test_nothing_on_the_gpu() -> None:
    found = findings("nothing", 1)
    assert (found.gpu_ops, found.cpu_ops) == (0, 1)
    assert found.refused == (RefusedOp("MUL", "Tensor has bad input dims size: 0.", ("args_1",)),)


def test_names_with_slashes_and_reasons_without_names() -> None:
    found = findings("mixed", 32)
    assert (found.gpu_ops, found.cpu_ops) == (17, 15)
    assert [(r.op, len(r.tensors)) for r in found.refused] == [("RESHAPE", 4), ("SLICE", 0), ("TRANSPOSE", 0)]
    assert found.refused[0].tensors[0] == "zoo.Seq/zoo.MA_b3;10"
    assert found.refused[1].reason == "Slicing is unsupported for input with rank > 4"


def test_the_last_compile_counts_and_in_it_the_first_signature() -> None:
    # Signature "one" runs wholly on the GPU (2 ops); the refusals are those of "two", which is not run.
    found = findings("two_signatures", 2)
    assert (found.gpu_ops, found.cpu_ops, found.line, found.refused) == (2, 0, "", ())
    both = log("refused") + log("whole")
    assert (read(both, 5).gpu_ops, read(both, 5).refused) == (5, ())
    assert read(log("whole") + log("refused"), 6).refused == REFUSED


@pytest.mark.parametrize(
    ("name", "total", "gpu", "cpu"),
    [
        ("end_node", 5, 2, 3),  # ops 0 and 1
        ("end_node_refused", 6, 2, 4),
        ("exclude_nodes", 5, 3, 2),  # all but 1 and 2
        ("exclude_nodes_refused", 6, 1, 5),  # the line says 2 and 4, and one of the two is then taken away
        ("exclude_all", 5, 0, 5),
    ],
)
def test_the_delegates_switches_are_counted_in(name: str, total: int, gpu: int, cpu: int) -> None:
    found = findings(name, total)
    assert (found.gpu_ops, found.cpu_ops) == (gpu, cpu)


def test_validation_errors_are_told_by_their_root_once() -> None:
    found = findings("validation", 5)
    assert found.validation_errors == (
        "Error while parsing WGSL: :31:15 error: no matching overload for 'operator * (vec4<f32>, vec4<f16>)'",
    )
    assert found.errors == ()
    follow_ups = "\n".join(line for line in log("validation").splitlines() if "WGSL" not in line)
    assert len(read(follow_ups, 5).validation_errors) == 3  # with no root in sight, what there is


def test_errors_that_raise_nothing_are_kept() -> None:
    assert findings("topk", 9).errors == ("TopK requires src tensor C dimension to be divisible by 4.",)


def test_out_of_memory_is_not_a_placement() -> None:
    found = findings("memory", 2)
    assert (found.gpu_ops, found.cpu_ops) == (None, None)
    assert "RESOURCE_EXHAUSTED: Buffer with size - 3200000000 bytes can not be created" in found.out_of_memory
    assert findings("whole", 5).out_of_memory == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_driver", "No Vulkan driver is installed"),
        ("no_loader", "The Vulkan loader (libvulkan.so.1) is missing"),
        ("no_device", "it finds no device that it can use"),
    ],
)
def test_why_there_is_no_gpu_and_what_to_do(name: str, words: str) -> None:
    found = findings(name, 5)
    assert found.adapter == ""
    assert (found.gpu_ops, found.cpu_ops) == (None, None)
    assert words in found.no_gpu_reason
    assert "scripts/vulkan" in found.no_gpu_reason
    assert found.no_gpu_reason == why_no_gpu(log(name))


def test_an_old_driver_is_told_from_a_missing_one() -> None:
    # The two sentences of Mesa 22.3.6 in FACTS; no such driver is at hand to record.
    text = "Warning: Vulkan shaderUniform*ArrayDynamicIndexing required.\nERROR: [x.cc:1] INTERNAL: No adapters found\n"
    assert "too old" in why_no_gpu(text)
    assert "found no adapter" in why_no_gpu("ERROR: [x.cc:1] INTERNAL: No adapters found\n")
    assert why_no_gpu(log("whole")) == why_no_gpu(log("cpu")) == why_no_gpu(log("memory")) == ""


def test_a_reason_of_two_sentences_is_not_split() -> None:
    text = log("whole") + (
        "# of threads to compile kernels = 0\nERROR: Following operations are not supported by GPU delegate:\n"
        "BROADCAST_TO: Operation is not supported. Use a TILE instead.\n"
        "57 operations will run on the GPU, and the remaining 205 operations will run on the CPU.\n"
    )
    text = text[text.rindex("# of threads to compile kernels") :]
    assert read(text, 262).refused == (
        RefusedOp("BROADCAST_TO", "Operation is not supported. Use a TILE instead.", ()),
    )
