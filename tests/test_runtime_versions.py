"""The worker under versions of ai-edge-litert that differ in what they offer Python, on the real delegate."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bisect_litert.devices import placement
from bisect_litert.devices.runners import Job, JobResult, Runner, worker_command

DATA = Path(__file__).parent / "data"
RNG = np.random.default_rng(0)
MLP = {"args_0": RNG.standard_normal((3, 8)).astype("f4")}
KINDS = {"args_0": RNG.standard_normal((2, 3)).astype("f4"), "args_1": np.arange(4, dtype="i4"),
         "args_2": np.array([[True, False, True], [False, False, True]])}  # fmt: skip
RANK5 = {"args_0": RNG.standard_normal((4, 12)).astype("f4")}
INT64 = {"args_0": RNG.standard_normal((4, 8)).astype("f4")}
END, EXCLUDE = "LITERT_GPU_DEBUG_END_NODE", "LITERT_GPU_DEBUG_EXCLUDE_NODES"


@dataclass(frozen=True)
class Seen:
    """What one version made of the jobs below."""

    version: str
    results: dict[str, JobResult]

    def output(self, name: str, output: str = "output_0") -> np.ndarray:
        assert self.results[name].ok, self.results[name].detail
        return self.results[name].outputs[output]


def jobs() -> list[Job]:
    def job(name: str, model: str, inputs: dict[str, np.ndarray], accelerator: str = "gpu", **options: object) -> Job:
        return Job(name, DATA / f"{model}.tflite", accelerator, inputs, **options)  # type: ignore[arg-type]

    return [
        job("cpu", "mlp", MLP, "cpu"),
        job("gpu", "mlp", MLP),
        job("fp32", "mlp", MLP, fp32=True),
        job("end-node", "mlp", MLP, env={END: "0"}),
        job("exclude", "mlp", MLP, env={EXCLUDE: "0,1,2"}),
        job("no-switch", "mlp", MLP, env={EXCLUDE: ""}),
        job("kinds", "kinds", KINDS),
        job("kinds-cpu", "kinds", KINDS, "cpu"),
        job("int64", "int64", INT64, "cpu"),
        job("rank5", "rank5", RANK5),
        job("rank5-cpu", "rank5", RANK5, "cpu"),
        job("alone", "rank5", RANK5, fallback=False),
        job("repeated", "repeated_output", MLP),
        job("unnamed", "no_signature", {"serving_default_args_0": MLP["args_0"]}, "cpu"),
        job("gone", "mlp", {}),
        job("last", "mlp", MLP),
    ]


@pytest.fixture(scope="module", params=["2.1.3", "2.1.6", ""], ids=["2.1.3", "2.1.6", "installed"])
def seen(
    request: pytest.FixtureRequest, interpreter: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Seen:
    python = interpreter(request.param)
    folder = tmp_path_factory.mktemp("versions")
    with Runner(folder, command=worker_command(python)) as runner:
        results = runner.run(jobs())
    if not results["last"].adapter_line:
        pytest.skip("no GPU that LiteRT accepts; scripts/vulkan installs a software one")
    return Seen(request.param, results)


def test_it_says_which_version_it_is_and_what_that_lacks(seen: Seen) -> None:
    if seen.version:
        assert {r.versions["ai-edge-litert"] for r in seen.results.values()} == {seen.version}
    assert seen.results["gpu"].lacks == (("fp32", "switches") if seen.version == "2.1.3" else ())


def test_the_gpu_is_fp16_on_every_version(seen: Seen) -> None:
    cpu = seen.output("cpu")
    assert 1e-5 < np.abs(seen.output("gpu") - cpu).max() < 1e-2
    assert seen.output("last").tobytes() == seen.output("gpu").tobytes()
    assert not seen.results["gpu"].unwritten["output_0"]


def test_fp32_is_fp32_or_refused_in_words(seen: Seen) -> None:
    if "fp32" in seen.results["gpu"].lacks:
        assert not seen.results["fp32"].ok
        assert seen.results["fp32"].unavailable
        assert seen.results["fp32"].detail == "ai-edge-litert 2.1.3 has no option for fp32 on the GPU"
    else:
        assert np.abs(seen.output("fp32") - seen.output("cpu")).max() < 1e-6


def test_a_switch_is_honoured_or_refused_and_never_ignored(seen: Seen) -> None:
    if "switches" in seen.results["gpu"].lacks:
        assert seen.results["end-node"].detail == f"ai-edge-litert 2.1.3 does not know {END}"
        assert seen.results["exclude"].detail == f"ai-edge-litert 2.1.3 does not know {EXCLUDE}"
    else:
        cpu, gpu = seen.output("cpu").tobytes(), seen.output("gpu").tobytes()
        assert seen.output("exclude").tobytes() == cpu
        assert seen.output("end-node").tobytes() not in (cpu, gpu)
    assert seen.output("no-switch").tobytes() == seen.output("gpu").tobytes()


@pytest.mark.parametrize("name", ["kinds", "kinds-cpu"])
def test_every_dtype_comes_through(seen: Seen, name: str) -> None:
    x, i, m = KINDS.values()
    y = np.where(m, x, -x) * 2
    np.testing.assert_allclose(seen.output(name), y, atol=5e-3)
    np.testing.assert_array_equal(seen.output(name, "output_1"), y > 0)
    np.testing.assert_array_equal(seen.output(name, "output_2"), i + 3)
    np.testing.assert_allclose(seen.output(name, "output_3"), y.sum(), atol=2e-2)
    assert [seen.output(name, f"output_{k}").dtype.name for k in range(4)] == ["float32", "bool", "int32", "float32"]
    assert seen.output("int64").dtype == np.int64
    np.testing.assert_array_equal(seen.output("int64"), INT64["args_0"].argmax(-1))


def test_a_refusal_is_told_from_a_failure(seen: Seen) -> None:
    result = seen.results["rank5"]
    assert result.fell_back
    assert not seen.results["alone"].ok
    assert not seen.results["alone"].fell_back
    found = placement.read(result.log_text, 6, result.adapter_line)
    assert (found.gpu_ops, found.cpu_ops) == (2, 4)
    assert {r.op for r in found.refused} == {"RESHAPE", "TRANSPOSE"}
    if seen.version == "2.1.3":  # what it compiles for both it cannot run: a fault of that version, in its own words
        assert "Failed to invoke" in result.detail
        assert "cannot hand tensors between the GPU and the CPU" in placement.why_failed(result.log_text)
    else:
        assert placement.why_failed(result.log_text) == ""
        np.testing.assert_allclose(seen.output("rank5"), seen.output("rank5-cpu"), atol=2e-2)


def test_names_hold_where_the_runtime_merges_or_has_none(seen: Seen) -> None:
    assert seen.results["repeated"].unwritten == {"output_0": 12, "output_1": 0}
    np.testing.assert_array_equal(seen.output("repeated", "output_1"), seen.output("gpu"))
    (output,) = seen.results["unnamed"].outputs.values()
    np.testing.assert_array_equal(output, seen.output("cpu"))


def test_a_bad_job_harms_none_after_it(seen: Seen) -> None:
    assert not seen.results["gone"].unavailable
    assert seen.results["gone"].detail == "input 'args_0' is missing; the model wants args_0"
    assert seen.results["last"].ok


def test_a_runtime_without_its_accelerator_library_says_so(tmp_path: Path) -> None:
    """From 2.3.0 on such a runtime runs what is for the GPU on the CPU, and says ok."""
    site = Path(next(p for p in sys.path if (Path(p) / "ai_edge_litert").is_dir()))
    copy = tmp_path / "site"
    copy.mkdir()
    for path in site.iterdir():  # links, but for the folder that is to lack a file
        if path.name != "ai_edge_litert":
            (copy / path.name).symlink_to(path)
    (copy / "ai_edge_litert").mkdir()
    for path in (site / "ai_edge_litert").iterdir():
        if path.suffix == ".py" or path.name.startswith("libLiteRt."):
            shutil.copy(path, copy / "ai_edge_litert")  # where it lies is where it looks
        elif "Accelerator" not in path.name:
            (copy / "ai_edge_litert" / path.name).symlink_to(path)
    python = tmp_path / "python"
    code = f"import sys; sys.path.insert(0, {str(copy)!r}); import runpy; sys.argv = sys.argv[1:]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(code)} "$@"\n')
    python.chmod(0o755)
    with Runner(tmp_path / "work", command=worker_command(str(python))) as runner:
        results = runner.run([jobs()[0], jobs()[1]])
    assert results["cpu"].ok, results["cpu"].detail
    assert not results["gpu"].ok
    assert results["gpu"].unavailable
    assert results["gpu"].detail.endswith("has no GPU accelerator")
    assert "gpu" in results["gpu"].lacks
