"""Runs .tflite files on LiteRT in a process of its own, whose death, time-out and stderr are data to the parent.

One file that imports the standard library, numpy and ai_edge_litert only, so that it also runs copied alone onto
another machine:

    python worker.py REQUEST RESPONSE      run one request folder
    python worker.py --serve               run "REQUEST<TAB>RESPONSE" lines from stdin, print "done" after each

A request folder holds `request.json`, {"jobs": [...]}, and the files it names (relative paths). A job has "id",
"model", "accelerator" ("cpu", "gpu", "gpu+cpu", "interpreter" or "xnnpack") and "inputs" ({signature input name: .npy
file}), and maybe "fp32", "fallback" (when the GPU alone refuses, try GPU and CPU together; default true), "env" (set
while the job runs) and "tensors" (indices of tensors to keep, or "all" that an op writes; interpreter only). The
response folder gets, per job, a folder named by its id with `started`, the outputs as .npy, the tensors in one file,
`stderr.log` (what C++ printed), and last and atomically `response.json`: status, error, outputs, times, and under
"versions" what ran it.

The versions of ai-edge-litert differ in what they offer Python. All of that is here, found out by looking and not by
version: `Runtime` says what there is. What there is not is an answer ("lacks"), and so is a job that needs it
("unavailable").
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The script's own folder leads sys.path. In the installed package it holds modules such as graph.py and metrics.py,
    # which must not stand in for somebody else's modules of that name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

import numpy as np

EXIT_DISK_FULL = 74  # EX_IOERR; the parent takes it as "no space left", since no response could be written either
_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
# What tells a refusal from another failure: the error's own words from 2.3.0, the delegate's log lines in all versions.
_REFUSED = ("Some ops are not accelerated", "will run on the CPU", "Failed to initialize kernel")
_SLOW_FIRST_READ = "TensorBufferWrapper error: code=3"
_SLOW_SECONDS, _READS = 5.0, 60
_LOG = "stderr.log"
_NOT_LOADED = "GPU accelerator could not be loaded and registered"
_LOADED = re.compile(r"GPU accelerator\(.*\) registered")
_PLACEMENT_SWITCHES = "LITERT_GPU_DEBUG_"
_NO_GPU, _NO_FP32, _NO_SWITCHES = "gpu", "fp32", "switches"
_INTERPRETED = ("interpreter", "xnnpack")

# NaN payloads no kernel writes: arithmetic gives the canonical NaN, and a copied NaN keeps its own payload.
FLOAT_SENTINELS = {"float16": 0x7EEF, "float32": 0x7FC0BEEF, "float64": 0x7FF8BEEFBEEFBEEF}
BYTE_SENTINEL = 0x5A


class JobError(Exception):
    """A job that cannot run as asked; the text is for the user."""


class UnavailableError(JobError):
    """A job that asks for what this version of the runtime has no way to give."""


def sentinel(dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Returns `count` elements of `dtype` as the bytes (uint8) that an output buffer is filled with before a run."""
    pattern = FLOAT_SENTINELS.get(dtype.name)
    if pattern is None:
        return np.full(count * dtype.itemsize, BYTE_SENTINEL, np.uint8)
    return np.full(count, pattern, f"u{dtype.itemsize}").view(np.uint8)


def count_unwritten(raw: np.ndarray, dtype: np.dtype[Any]) -> int:
    """Counts elements that still hold the sentinel.

    Args:
        raw: The buffer as read, uint8.
        dtype: The tensor's. Integers and bools have no spare values, so they count only when all elements hold it.
    """
    count = raw.size // dtype.itemsize
    if dtype.name in FLOAT_SENTINELS:
        return int(np.count_nonzero(raw.view(f"u{dtype.itemsize}") == FLOAT_SENTINELS[dtype.name]))
    return count if count and bool((raw == BYTE_SENTINEL).all()) else 0


def fit_input(name: str, array: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Returns an input in the dtype the model wants, C-contiguous.

    Raises:
        JobError: The shape differs, or the values do not survive the change of dtype.
    """
    if array.shape != shape:
        raise JobError(f"input {name!r} has shape {list(array.shape)}, the model wants {list(shape)}")
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise JobError(f"input {name!r} is {array.dtype.name}, the model wants {dtype.name}")
        if dtype.kind in "iu" and array.size:
            limits = np.iinfo(dtype)
            if array.min() < limits.min or array.max() > limits.max:
                raise JobError(f"input {name!r} has values that {dtype.name}, which the model wants, cannot hold")
        array = array.astype(dtype)
    return np.require(array, requirements="C")


def save_array(path: Path, array: np.ndarray) -> dict[str, Any]:
    """Writes a .npy file and returns its entry for the response. (np.save loses the errno of a full disk.)"""
    array = np.require(array, requirements="C")
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)
    return {"file": f"{path.parent.name}/{path.name}", "shape": list(array.shape), "dtype": array.dtype.name}


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextlib.contextmanager
def captured(log: Path) -> Iterator[None]:
    """Sends fd 1 and fd 2, where the C++ side writes, to `log` meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), saved):  # noqa: B905 (both are pairs)
            os.dup2(copy, descriptor)
            os.close(copy)


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables meanwhile; the delegate reads them at compile time, in a running process too."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def versions() -> dict[str, str]:
    """What the results depend on here: the runtime, Python, the platform, and the machine's name."""
    import platform
    from importlib import metadata

    found = {}
    for package in ("ai-edge-litert", "ai-edge-litert-nightly"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    found["python"] = platform.python_version()
    found["platform"] = f"{platform.system()} {platform.machine()}"
    found["host"] = platform.node()
    return found


class Runtime:
    """The installed ai-edge-litert: its version, what it lacks, and the ways to do what every version can do."""

    def __init__(self) -> None:
        import ai_edge_litert.compiled_model as compiled_model
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator

        known = versions()
        self.version = known.get("ai-edge-litert") or known.get("ai-edge-litert-nightly", "unknown")
        self._model_class, self._accelerators = compiled_model.CompiledModel, HardwareAccelerator
        self._takes = _parameters(self._model_class.from_file)
        libraries = [
            path
            for path in sorted(Path(compiled_model.__file__).parent.iterdir())
            if "Accelerator" in path.name and path.suffix in (".so", ".dylib", ".dll")
        ]
        has = {
            _NO_GPU: hasattr(HardwareAccelerator, "GPU") and "hardware_accel" in self._takes,
            _NO_FP32: self._has_fp32(),
            _NO_SWITCHES: any(_holds(path, _PLACEMENT_SWITCHES.encode()) for path in libraries),
        }
        self.lacks = tuple(name for name, there in has.items() if not there)
        """Of "gpu" (any GPU accelerator), "fp32" (the option for it on the GPU), "switches" (LITERT_GPU_DEBUG_...)."""
        self._environment: Any = None
        self._asked_for_gpu = False

    def notice(self, log: Path) -> None:
        """Reads in a job's log whether the GPU accelerator's library was loaded.

        Raises:
            UnavailableError: The job is for the GPU, and it was not. From 2.3.0 on such a job runs on the CPU without a
                word.
        """
        text = log.read_text(encoding="utf-8", errors="replace")
        if _NOT_LOADED in text and not _LOADED.search(text) and _NO_GPU not in self.lacks:
            self.lacks = (_NO_GPU, *self.lacks)
        if self._asked_for_gpu:
            self._need_gpu()

    def _need_gpu(self) -> None:
        if _NO_GPU in self.lacks:
            raise UnavailableError(f"ai-edge-litert {self.version} has no GPU accelerator")

    def _has_fp32(self) -> bool:
        if "options" not in self._takes:
            return False
        try:
            from ai_edge_litert.options import GpuOptions
        except ImportError:
            return False
        return "enforce_f32" in _parameters(GpuOptions)

    def compile(self, path: str, *, gpu: bool, cpu: bool, fp32: bool = False) -> Any:
        """Compiles a model for the GPU, the CPU, or both.

        Raises:
            UnavailableError: This version has no GPU accelerator, or no fp32 on it.
        """
        self._asked_for_gpu = gpu
        if gpu:
            self._need_gpu()
        if fp32 and _NO_FP32 in self.lacks:
            raise UnavailableError(f"ai-edge-litert {self.version} has no option for fp32 on the GPU")
        wanted = self._accelerators.GPU if gpu else self._accelerators.CPU
        if gpu and cpu:
            wanted = self._accelerators.GPU | self._accelerators.CPU
        given: dict[str, Any] = {}
        if "environment" in self._takes:
            if self._environment is None:
                from ai_edge_litert.environment import Environment

                # This only loads the GPU library; the first compile for the GPU opens the device, so CPU jobs share it.
                self._environment = Environment.create()
            given["environment"] = self._environment
        if gpu and _NO_FP32 not in self.lacks:
            from ai_edge_litert.options import GpuOptions, Options

            options = Options(hardware_accelerators=wanted, gpu_options=GpuOptions(enforce_f32=fp32))
            return self._model_class.from_file(path, options=options, **given)
        if "hardware_accel" in self._takes:
            given["hardware_accel"] = wanted
        return self._model_class.from_file(path, **given)

    def output_details(self, model: Any, key: str, path: str) -> Mapping[str, Any]:
        """Index, shape and dtype of a signature's outputs, by name; before 2.1.5 only the interpreter tells."""
        if hasattr(model, "get_output_tensor_details"):
            details: Mapping[str, Any] = model.get_output_tensor_details(key)
            return details
        from ai_edge_litert.interpreter import Interpreter

        _, given = _interpreter_details(Interpreter(model_path=path), key)
        return {name: {**detail, "dtype": np.dtype(detail["dtype"]).name} for name, detail in given.items()}


def _parameters(function: Any) -> frozenset[str]:
    import inspect

    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function without a Python signature
        return frozenset()


def _holds(path: Path, text: bytes) -> bool:
    import mmap

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text) >= 0


def write_bytes(buffer: Any, raw: np.ndarray) -> None:
    """Fills a buffer of any dtype with bytes: the versions differ in the dtypes they take, and none takes them all."""
    try:
        buffer.write(raw)
    except ValueError:  # before 2.1.5 there was no uint8, and values went through a list, so the fewer the better
        buffer.write(raw.view(np.int32 if raw.size % 4 == 0 else np.int8))


def read_bytes(buffer: Any, size: int) -> np.ndarray:
    """The first `size` bytes of a buffer, uint8."""
    try:
        return np.asarray(buffer.read(size, np.uint8))
    except ValueError:
        whole = size % 4 == 0
        return np.asarray(buffer.read(size // 4 if whole else size, np.int32 if whole else np.int8)).view(np.uint8)


class Worker:
    """Runs requests, keeping one LiteRT Environment for all of them (0.02 s a model instead of 0.3)."""

    def __init__(self) -> None:
        self._runtime: Runtime | None = None
        self._adapter_line = ""
        self._versions = versions()

    def run_request(self, request: Path, response: Path) -> None:
        """Runs the jobs of a request folder in order; a job that fails is an answer, and the next one runs."""
        jobs = json.loads((request / "request.json").read_text(encoding="utf-8"))["jobs"]
        for job in jobs:
            folder = response / job["id"]
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "started", "")
            answer = self._run_job(job, request, folder)
            write_text(folder / "response.json", json.dumps(answer))

    def _run_job(self, job: dict[str, Any], request: Path, folder: Path) -> dict[str, Any]:
        log = folder / _LOG
        answer: dict[str, Any] = {
            "status": "ok",
            "error": "",
            "outputs": {},
            "tensors": {},
            "seconds": {"compile": 0.0, "run": 0.0},
            "fell_back": False,
            "refused_alone": "",
            "adapter_line": "",
            "versions": self._versions,
            "lacks": [],
            "unavailable": False,
            "log": f"{folder.name}/{log.name}",
        }
        with captured(log), environment_variables(job.get("env") or {}):
            try:
                inputs = {name: np.load(request / path, allow_pickle=False) for name, path in job["inputs"].items()}
                model = str(request / job["model"])
                if job["accelerator"] in _INTERPRETED:
                    delegate = job["accelerator"] == "xnnpack"
                    keep = () if delegate else job.get("tensors") or ()
                    _run_interpreter(model, inputs, folder, answer, keep, delegate)
                else:
                    self._run_compiled(job, model, inputs, folder, answer)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _DISK_FULL:
                    raise
                import traceback

                traceback.print_exc()
                answer["status"], answer["unavailable"] = "failed", isinstance(error, UnavailableError)
                answer["error"] = str(error) if isinstance(error, JobError) else f"{type(error).__name__}: {error}"
        if not self._adapter_line:
            # Printed once per process, when the first GPU job opens the device; the later jobs' answers carry it along.
            text = log.read_text(encoding="utf-8", errors="replace")
            self._adapter_line = next((line for line in text.splitlines() if "Selected adapter:" in line), "")
        answer["adapter_line"] = self._adapter_line
        answer["lacks"] = list(self._runtime.lacks) if self._runtime else []
        return answer

    def _run_compiled(
        self, job: dict[str, Any], path: str, inputs: Mapping[str, np.ndarray], folder: Path, answer: dict[str, Any]
    ) -> None:
        if self._runtime is None:
            self._runtime = Runtime()
        runtime = self._runtime
        start, log = time.perf_counter(), folder / _LOG
        try:
            model = _compile(runtime, job, path, log, answer)
        except Exception:
            runtime.notice(log)
            raise
        runtime.notice(log)
        answer["seconds"]["compile"] = time.perf_counter() - start
        start = time.perf_counter()
        try:
            for left in reversed(range(_READS)):
                began = time.perf_counter()
                try:
                    _run_model(runtime, model, path, inputs, folder, answer)
                    break
                except Exception as error:
                    # Before 2.3.0 a read gives up after 20 s, and a large model's kernels take minutes to build on a
                    # software driver. The next run finds some of them built; how long that may go on the parent says.
                    waited = time.perf_counter() - began > _SLOW_SECONDS
                    if _SLOW_FIRST_READ not in str(error) or not waited or not left:
                        raise
        finally:
            answer["seconds"]["run"] = time.perf_counter() - start
            if hasattr(model, "close"):
                model.close()


def _compile(runtime: Runtime, job: dict[str, Any], path: str, log: Path, answer: dict[str, Any]) -> Any:
    accelerator, fp32 = job["accelerator"], bool(job.get("fp32"))
    if accelerator == "cpu":
        return runtime.compile(path, gpu=False, cpu=True)
    if accelerator == "gpu+cpu":
        return runtime.compile(path, gpu=True, cpu=True, fp32=fp32)
    if accelerator != "gpu":
        raise JobError(f"unknown accelerator {accelerator!r}")
    switches = [
        name for name, value in (job.get("env") or {}).items() if name.startswith(_PLACEMENT_SWITCHES) and value
    ]
    if switches:
        if _NO_SWITCHES in runtime.lacks:  # it would ignore them and run everything on the GPU
            raise UnavailableError(f"ai-edge-litert {runtime.version} does not know {switches[0]}")
        # These keep ops off the GPU on purpose, so GPU alone can only be refused.
        return runtime.compile(path, gpu=True, cpu=True, fp32=fp32)
    try:
        return runtime.compile(path, gpu=True, cpu=False, fp32=fp32)
    except Exception as error:
        said = str(error) + log.read_text(encoding="utf-8", errors="replace")
        if not job.get("fallback", True) or not any(words in said for words in _REFUSED):
            raise
        answer["refused_alone"] = str(error)
    model = runtime.compile(path, gpu=True, cpu=True, fp32=fp32)
    answer["fell_back"] = True
    return model


def _run_model(
    runtime: Runtime, model: Any, path: str, inputs: Mapping[str, np.ndarray], folder: Path, answer: dict[str, Any]
) -> None:
    """Fills the outputs with the sentinel, runs the first signature, and saves its outputs into `folder`."""
    key, signature = next(iter(model.get_signature_list().items()))
    wanted = model.get_input_tensor_details(key)
    given = runtime.output_details(model, key, path)
    listed = list(signature["outputs"])
    buffers_in = {name: model.create_input_buffer_by_name(key, name) for name in wanted}
    for name, detail in wanted.items():
        dtype = _dtype(name, detail)
        array = fit_input(name, _input(inputs, name, wanted), dtype, tuple(detail["shape"]))
        write_bytes(buffers_in[name], array.reshape(-1).view(np.uint8))

    distinct = len(set(listed)) == len(listed)
    if distinct:
        names, details = listed, [given[name] for name in listed]
        buffers_out = [model.create_output_buffer_by_name(key, name) for name in listed]
    else:
        # One tensor in two outputs: LiteRT calls both by one name, so only their position tells them apart.
        names, details = _names_of_repeated_outputs(path, listed, given), [given[name] for name in listed]
        buffers_out = model.create_output_buffers(0)
    for name, detail, buffer in zip(names, details, buffers_out):  # noqa: B905 (3.10)
        dtype = _dtype(name, detail)
        write_bytes(buffer, sentinel(dtype, _count(detail)))
    if distinct:
        model.run_by_name(key, buffers_in, dict(zip(names, buffers_out)))  # noqa: B905
    else:
        model.run_by_index(0, [buffers_in[name] for name in signature["inputs"]], buffers_out)

    for index, (name, detail, buffer) in enumerate(zip(names, details, buffers_out)):  # noqa: B905
        dtype = _dtype(name, detail)
        raw = read_bytes(buffer, _count(detail) * dtype.itemsize)
        unwritten = count_unwritten(raw, dtype)
        # A bool holds 0 or 1; the sentinel's bytes would be neither.
        array = raw != 0 if dtype.kind == "b" else raw.view(dtype)
        entry = save_array(folder / f"out_{index:03d}.npy", array.reshape(tuple(detail["shape"])))
        answer["outputs"][name] = {**entry, "unwritten": unwritten}


def _names_of_repeated_outputs(path: str, listed: list[str], given: Mapping[str, Any]) -> list[str]:
    """The signature's own names for outputs that LiteRT's list merges, which only the interpreter still tells."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    free: dict[int, list[str]] = {}
    for name, detail in runner.get_output_details().items():
        free.setdefault(int(detail["index"]), []).append(name)
    return [free[int(given[name]["index"])].pop(0) for name in listed]


def _run_interpreter(
    path: str, inputs: Mapping[str, np.ndarray], folder: Path, answer: dict[str, Any], keep: Any, delegate: bool
) -> None:
    """Runs the plain CPU kernels, one op at a time, and keeps tensors by index, or "all" that an op wrote.

    With `delegate` they are XNNPACK's, as on LiteRT's CPU, and nothing is kept. LiteRT's compiled model would give the
    same bits, but looks each tensor up in a list while it reads the graph: emulation makes tens of thousands of them.
    """
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    start = time.perf_counter()
    plain, full = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO
    interpreter = Interpreter(
        model_path=path,
        experimental_preserve_all_tensors=not delegate,
        experimental_op_resolver_type=full if delegate else plain,
    )
    interpreter.allocate_tensors()
    answer["seconds"]["compile"] = time.perf_counter() - start
    start = time.perf_counter()
    wanted, given = _interpreter_details(interpreter)
    for name, detail in wanted.items():
        array = fit_input(name, _input(inputs, name, wanted), np.dtype(detail["dtype"]), tuple(detail["shape"]))
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    if keep:
        written = {int(index) for op in interpreter._get_ops_details() for index in op["outputs"]}
        written |= {int(detail["index"]) for detail in wanted.values()}
        kept = written - {-1} if keep == "all" else written.intersection(keep)
        answer["tensors"] = _save_tensors(interpreter, sorted(kept), folder / "tensors.bin")
    for index, (name, detail) in enumerate(given.items()):
        entry = answer["tensors"].get(str(int(detail["index"])))  # what is there already is not written twice
        if entry is None:
            entry = save_array(folder / f"out_{index:03d}.npy", np.asarray(interpreter.get_tensor(detail["index"])))
        answer["outputs"][name] = {**entry, "unwritten": 0}
    answer["seconds"]["run"] = time.perf_counter() - start


def _save_tensors(interpreter: Any, indices: list[int], path: Path) -> dict[str, Any]:
    """Writes tensors one after the other into one file: a large graph has tens of thousands."""
    entries = {}
    with path.open("wb") as file:
        for index in indices:
            try:
                array = np.require(interpreter.get_tensor(index), requirements="C")
            except ValueError:
                continue  # resources and variants have no value to read
            if array.dtype.hasobject:
                continue
            file.write(bytes(-file.tell() % 64))
            entry = {"file": f"{path.parent.name}/{path.name}", "offset": file.tell()}
            file.write(array.data)
            entries[str(index)] = {**entry, "shape": list(array.shape), "dtype": array.dtype.name}
    return entries


def _interpreter_details(interpreter: Any, key: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs by signature name (the first signature's, without a key), or by tensor name without any.

    In a function of its own because the interpreter refuses to run while a signature runner refers to it.
    """
    signatures = interpreter.get_signature_list()
    if signatures:
        runner = interpreter.get_signature_runner(key or next(iter(signatures)))
        return runner.get_input_details(), runner.get_output_details()
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    return {detail["name"]: detail for detail in inputs}, {detail["name"]: detail for detail in outputs}


def _input(inputs: Mapping[str, np.ndarray], name: str, wanted: Mapping[str, Any]) -> np.ndarray:
    if name not in inputs:
        raise JobError(f"input {name!r} is missing; the model wants {', '.join(wanted)}")
    return inputs[name]


def _dtype(name: str, detail: Mapping[str, Any]) -> np.dtype[Any]:
    try:
        return np.dtype(str(detail["dtype"]))
    except TypeError:
        raise JobError(f"tensor {name!r} is {detail['dtype']}, which numpy has no type for") from None


def _count(detail: Mapping[str, Any]) -> int:
    return int(np.prod(detail["shape"], dtype=np.int64))


def _give_runtime_folder() -> None:
    """Mesa complains without XDG_RUNTIME_DIR. MESA_SHADER_CACHE_DIR stays as it is: that cache saves minutes."""
    if "XDG_RUNTIME_DIR" not in os.environ:
        import atexit
        import shutil
        import tempfile

        os.environ["XDG_RUNTIME_DIR"] = folder = tempfile.mkdtemp(prefix="bisect-litert-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Runs one request, or serves requests from stdin. Returns the exit code."""
    if arguments != ["--serve"] and len(arguments) != 2:
        print("usage: worker.py REQUEST RESPONSE | worker.py --serve", file=sys.stderr)
        return 2
    _give_runtime_folder()
    worker = Worker()
    try:
        if arguments != ["--serve"]:
            worker.run_request(Path(arguments[0]), Path(arguments[1]))
            return 0
        import ai_edge_litert.compiled_model  # noqa: F401 (paid now, while the parent is still converting)

        # Answers go to the real stdout; anything else that prints there goes to stderr.
        with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
            os.dup2(2, 1)
            for line in sys.stdin:
                request, response = line.rstrip("\n").split("\t")
                worker.run_request(Path(request), Path(response))
                print("done", file=answers, flush=True)
    except OSError as error:
        if error.errno in _DISK_FULL:
            return EXIT_DISK_FULL
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
