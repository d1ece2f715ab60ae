"""Runs model.tflite beside this file on the GPU and says whether it still goes wrong. Needs numpy and ai-edge-litert.

    python repro.py [FOLDER] [--json FILE] [-v]

FOLDER (this file's own by default) holds model.tflite, repro.json, the inputs and what is right as .npy. It runs on the
GPU in default precision and in fp32, and on the CPU, and prints expected against got. What kills the process or never
ends runs in a process of its own.

Exit codes: 1 the GPU is wrong, 0 it is right, 125 it cannot be tested here (what `git bisect run` skips).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

try:
    import numpy as np
except ImportError:
    print("CANNOT BE TESTED here: numpy is missing (pip install numpy ai-edge-litert)")
    sys.exit(125)

WRONG, RIGHT, CANNOT_TEST = 1, 0, 125
SAME, FIXED, DIFFERENT, UNTESTED = "reproduces", "fixed", "different", "cannot be tested"
FP16_MAX = 65504.0
_REFUSED = "not accelerated"
NO_GPU = "there is no GPU (No adapters found)"
LOST_BUFFERS = ("aliased-output", "unwritten-output")
ANY_PRECISION = (*LOST_BUFFERS, "tap-effect")


def error(reference: np.ndarray, target: np.ndarray) -> dict[str, float]:
    """Measures a tensor against the right one.

    Returns:
        "new_nonfinite", a count of elements; and "relative_l2" over the elements that are finite on both sides and that
        fp16 can hold, where numbers of two scales stand side by side (a mask beside scores) that of the worse scale.
    """
    ref = np.asarray(reference, np.float64).reshape(-1)
    out = np.asarray(target, np.float64).reshape(-1)
    bad = ~np.isfinite(out) & (np.isfinite(ref) | (np.isinf(ref) & (out != ref)))
    both = np.isfinite(ref) & np.isfinite(out)
    held = both & (np.abs(ref) < FP16_MAX)
    parts = [held if held.any() else both]
    sizes = np.abs(ref[held & (ref != 0)])
    if sizes.size > 1:
        octaves = np.unique(np.floor(np.log2(sizes)))
        gaps = np.flatnonzero(np.diff(octaves) > 6)
        for gap in gaps:
            small = held & (np.abs(ref) < 2.0 ** octaves[gap + 1])
            if min(small.sum(), held.sum() - small.sum()) * 100 >= held.sum():
                parts += [small, held & ~small]
    return {"new_nonfinite": int(bad.sum()), "relative_l2": max(_relative(ref[p], out[p]) for p in parts)}


def _relative(reference: np.ndarray, target: np.ndarray) -> float:
    if not reference.size:
        return 0.0
    power, off = float(reference @ reference), float((target - reference) @ (target - reference))
    return (off / power) ** 0.5 if power else (0.0 if off == 0 else float("inf"))


def off(measured: Mapping[str, float], tolerance: float) -> bool:
    """Whether a tensor is wrong: something newly non-finite, or further off than an honest device may be."""
    return measured["new_nonfinite"] > 0 or measured["relative_l2"] > tolerance


def verdict(cause: str, tolerance: float, gpu: Any, fp32: Any) -> str:
    """Says what the GPU's errors, by output, come to: the fault of this cause, another one, or none.

    Args:
        cause: "wrong-kernel" shows in fp32 as well; "overflow" and "precision-loss" do not, and the latter is finite;
            an unwritten output is NaN (what the buffer was filled with); what is lost to buffers or to fusion may show
            in any precision; a process that lives on shows no crash.
        tolerance: See `off`.
        gpu: By output, `error` of the run in default precision.
        fp32: The same of the run in fp32.
    """
    wrong = [name for name in gpu if off(gpu[name], tolerance)]
    exact = [name for name in fp32 if off(fp32[name], tolerance)]
    if not wrong and not exact:
        return FIXED
    if cause == "wrong-kernel":
        return SAME if set(wrong) & set(exact) else DIFFERENT
    if cause in ANY_PRECISION:
        lost = {name for name in wrong if gpu[name]["new_nonfinite"]}
        fit = {"unwritten-output": lost, "aliased-output": set(wrong) - lost}
        return SAME if fit.get(cause, wrong) else DIFFERENT
    if cause in ("crash", "hang"):
        return DIFFERENT
    finite = not any(gpu[name]["new_nonfinite"] for name in gpu)
    return SAME if wrong and not exact and (finite or cause != "precision-loss") else DIFFERENT


@contextlib.contextmanager
def quiet(log: Any, loud: bool) -> Iterator[None]:
    """Sends what the C++ side prints (file descriptors 1 and 2) to a file."""
    if loud:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        os.close(saved[0])
        os.close(saved[1])


def run(path: Path, inputs: Mapping[str, np.ndarray], where: str, fp32: bool = False) -> dict[str, np.ndarray]:
    """Runs a model and returns its outputs by signature name; "gpu", "gpu+cpu" or "cpu"."""
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator
    from ai_edge_litert.options import GpuOptions, Options

    wanted = HardwareAccelerator.CPU if where == "cpu" else HardwareAccelerator.GPU
    if where == "gpu+cpu":
        wanted = HardwareAccelerator.GPU | HardwareAccelerator.CPU
    gpu = None if where == "cpu" else GpuOptions(enforce_f32=fp32)
    model = CompiledModel.from_file(str(path), options=Options(hardware_accelerators=wanted, gpu_options=gpu))
    key = next(iter(model.get_signature_list()))
    reads, writes = model.get_input_tensor_details(key), model.get_output_tensor_details(key)
    buffers = {name: model.create_input_buffer_by_name(key, name) for name in reads}
    for name, buffer in buffers.items():
        array = np.ascontiguousarray(inputs[name], np.dtype(str(reads[name]["dtype"])))
        buffer.write(array.reshape(-1).view(np.uint8))
    signature = model.get_signature_list()[key]
    listed = list(signature["outputs"])
    repeated = len(set(listed)) < len(listed)  # one tensor in two outputs: listed twice under one name
    if repeated:
        outputs = dict(zip(_own_names(path, listed, writes), model.create_output_buffers(0)))  # noqa: B905 (3.9)
    else:
        outputs = {name: model.create_output_buffer_by_name(key, name) for name in listed}
    details = {name: writes[known] for name, known in zip(outputs, listed)}  # noqa: B905
    for name, buffer in outputs.items():  # what no kernel writes stays NaN
        dtype, shape = np.dtype(str(details[name]["dtype"])), tuple(details[name]["shape"])
        empty = np.full(shape, np.nan, dtype) if dtype.kind == "f" else np.full(shape, 90, np.int8).astype(dtype)
        buffer.write(np.ascontiguousarray(empty).reshape(-1).view(np.uint8))
    if repeated:
        model.run_by_index(0, [buffers[name] for name in signature["inputs"]], list(outputs.values()))
    else:
        model.run_by_name(key, buffers, outputs)
    found = {}
    for name, buffer in outputs.items():
        dtype, shape = np.dtype(str(details[name]["dtype"])), tuple(details[name]["shape"])
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.array(buffer.read(size, np.uint8))
        found[name] = (raw != 0 if dtype.kind == "b" else raw.view(dtype)).reshape(shape)
    return found


def _own_names(path: Path, listed: list[str], writes: Mapping[str, Any]) -> list[str]:
    """The signature's names of outputs that share a tensor, which only the interpreter still tells apart."""
    from ai_edge_litert.interpreter import Interpreter

    free: dict[int, list[str]] = {}
    for name, detail in Interpreter(str(path)).get_signature_runner().get_output_details().items():
        free.setdefault(int(detail["index"]), []).append(name)
    return [free[int(writes[name]["index"])].pop(0) for name in listed]


def run_apart(
    path: Path, inputs: Mapping[str, np.ndarray], where: str, fp32: bool, limit: float
) -> tuple[dict[str, np.ndarray], str, str]:
    """Runs a model in a process of its own, for faults that kill the process or never end.

    Returns:
        Its outputs, empty when it died; "crash" or "hang" when it did, else ""; and in words how it ended.

    Raises:
        RuntimeError: The runtime refused it without dying.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.savez(folder / "inputs.npz", **inputs)  # type: ignore[arg-type]
        command = [sys.executable, str(Path(__file__).resolve()), "--child", str(path.resolve()), scratch, where]
        command += ["fp32"] if fp32 else []
        try:
            # What C++ prints goes where this process's own output went, the log.
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            return {}, "hang", f"no answer within {limit:g} s"
        if (folder / "error.txt").is_file():
            raise RuntimeError((folder / "error.txt").read_text(encoding="utf-8"))
        if not (folder / "done").is_file():
            return {}, "crash", f"the process died ({_ending(ended)})"
        with np.load(folder / "outputs.npz", allow_pickle=False) as outputs:
            return {name: outputs[name] for name in outputs.files}, "", ""


def _ending(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def _child(model: str, scratch: str, where: str, *fp32: str) -> int:
    """The process of `run_apart`."""
    folder = Path(scratch)
    with np.load(folder / "inputs.npz", allow_pickle=False) as held:
        inputs = {name: held[name] for name in held.files}
    try:
        outputs = run(Path(model), inputs, where, bool(fp32))
    except Exception as failure:
        (folder / "error.txt").write_text(f"{type(failure).__name__}: {failure}", encoding="utf-8")
        return 0
    np.savez(folder / "outputs.npz", **outputs)  # type: ignore[arg-type]
    (folder / "done").touch()
    return 0


def examine(
    about: Mapping[str, Any],
    model: Path,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    loud: bool = False,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Runs a model on the GPU in both precisions and on the CPU.

    Args:
        about: "cause", "tolerance", "reference", and maybe "accelerator", "time_limit" and "tapped".
        model: The .tflite file.
        inputs: By signature name.
        expected: What is right, by signature name.
        loud: Show what LiteRT prints.

    Returns:
        Each run's outputs, and what they come to, as `--json` writes it.
    """
    answer: dict[str, Any] = {"result": UNTESTED, "why": "", "adapter": "", "outputs": {}, "version": _version()}
    runs: dict[str, dict[str, np.ndarray]] = {}
    died: dict[str, tuple[str, str]] = {}
    where = about.get("accelerator", "gpu")
    plan = [("GPU", model, where, False), ("GPU, fp32", model, where, True)] if about["reference"] != "torch" else []
    if about.get("tapped"):
        plan.append(("GPU, tapped", model.with_name(str(about["tapped"])), where, False))
    limit = float(about.get("time_limit") or 0)
    with tempfile.TemporaryFile() as log:
        name = "GPU"
        try:
            for name, path, accelerator, fp32 in [*plan, ("CPU", model, "cpu", False)]:
                with quiet(log, loud):
                    if not limit:
                        runs[name] = run(path, inputs, accelerator, fp32)
                        continue
                    outputs, kind, how = run_apart(path, inputs, accelerator, fp32, limit)
                if kind:
                    died[name] = kind, how
                else:
                    runs[name] = outputs
        except ModuleNotFoundError as failure:
            answer["why"] = f"{failure.name} is missing (pip install {failure.name})"
            if str(failure.name).startswith("ai_edge_litert."):
                answer["why"] = f"this needs ai-edge-litert 2.1.5 or newer; {answer['version']} has no {failure.name}"
        except Exception as failure:
            refused = _REFUSED in str(failure)
            said = "the GPU refuses it" if refused else f"{type(failure).__name__} on the {name}"
            answer["why"] = f"{said}: {' '.join(str(failure).split())[:300]}"
            answer["refused"] = refused
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    if answer["why"] and "No adapters found" in text:  # the exception itself does not say so
        answer["why"] = NO_GPU
    adapter = re.search(r"Selected adapter: (.*?)(?:, arch=.*)?$", text, re.MULTILINE)
    answer["adapter"] = adapter.group(1).strip() if adapter else ""
    reported = re.search(r"Validation error: *(.*)", text)
    answer["reported"] = reported.group(1).strip() if reported else ""
    fatal = re.search(r"Check failed: .*", text)
    answer["fatal"] = fatal.group(0).strip() if fatal and died else ""
    conclude(about, expected, runs, died, answer)
    return runs, answer


def conclude(
    about: Mapping[str, Any],
    expected: Mapping[str, np.ndarray],
    runs: Mapping[str, Mapping[str, np.ndarray]],
    died: Mapping[str, tuple[str, str]],
    answer: dict[str, Any],
) -> None:
    """Adds to the answer what the runs come to.

    Args:
        about: As for `examine`.
        expected: What is right, by signature name.
        runs: Outputs by run ("GPU", "GPU, fp32", "CPU").
        died: Of runs that ended otherwise, "crash" or "hang" and how it ended.
        answer: Has "why", which is not empty if a run failed.
    """
    answer["died"] = {name: how for name, (_, how) in died.items()}
    if died:
        _judge_death(about, died, answer)
    else:
        _judge(about, expected, runs, answer)


def main(arguments: list[str] | None = None) -> int:
    """Runs the reproduction and prints what came out; returns the exit code."""
    parser = argparse.ArgumentParser(description="Runs the reproduction; exit code 1: wrong, 0: right, 125: no GPU.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what LiteRT prints")
    options = parser.parse_args(arguments)
    folder = options.folder
    try:
        about = json.loads((folder / "repro.json").read_text(encoding="utf-8"))
        inputs = {t["name"]: np.load(folder / t["file"], allow_pickle=False) for t in about["inputs"]}
        expected = {t["name"]: np.load(folder / t["file"], allow_pickle=False) for t in about["outputs"]}
    except (OSError, ValueError, EOFError, KeyError, TypeError) as failure:
        print(f"CANNOT BE TESTED here: the reproduction is incomplete or damaged ({failure})")
        return CANNOT_TEST
    if about.get("tapped"):
        about["tapped"] = Path(str(about["tapped"])).name  # never outside its own folder
    runs, answer = examine(about, folder / "model.tflite", inputs, expected, options.verbose)
    ops = ", ".join(op["type"] for op in about["ops"][:12]) + (", ..." if len(about["ops"]) > 12 else "")
    print(f"ai-edge-litert {answer['version']}, Python {platform.python_version()}, {platform.system()}")
    print(f"adapter: {answer['adapter'] or 'none'}")
    print(f"model.tflite: {ops}")
    show(about, expected, runs, answer)
    if options.json:
        options.json.write_text(json.dumps(answer, indent=1), encoding="utf-8")
    return exit_code(answer)


def exit_code(answer: Mapping[str, Any]) -> int:
    """Returns what the script ends with."""
    return {FIXED: RIGHT, UNTESTED: CANNOT_TEST}.get(answer["result"], WRONG)


def _judge_death(about: Any, died: Mapping[str, tuple[str, str]], answer: dict[str, Any]) -> None:
    kind, how = died.get("GPU") or next(iter(died.values()))
    answer["why"] = f"{'GPU' if 'GPU' in died else next(iter(died))}: {how}"
    answer["result"] = SAME if "GPU" in died and "CPU" not in died and kind == about["cause"] else DIFFERENT


def _judge(about: Any, expected: Any, runs: Any, answer: dict[str, Any]) -> None:
    if answer["why"]:
        return
    errors = {run: {name: error(expected[name], got[name]) for name in expected} for run, got in runs.items()}
    answer["outputs"] = errors
    tolerance = about["tolerance"]
    wrong_on_cpu = any(off(e, tolerance) for e in errors["CPU"].values())
    if about["reference"] == "torch":
        answer["result"] = SAME if wrong_on_cpu else FIXED
    elif wrong_on_cpu and about["cause"] not in LOST_BUFFERS:  # those the CPU may lose as well
        answer["result"] = DIFFERENT
        answer["why"] = "the CPU is wrong here too"
    else:
        answer["result"] = verdict(about["cause"], tolerance, errors["GPU"], errors["GPU, fp32"])


def show(about: Any, expected: Any, runs: Any, answer: Mapping[str, Any]) -> None:
    """Prints expected against got, and what it comes to."""
    for name, value in expected.items():
        print(f"\n{name} {list(value.shape)}, tolerance {about['tolerance']:.1e}")
        print(f"  {'':12}{'rel L2 error':>13}{'non-finite':>12}{'largest':>11}   values")
        for label, got in [("expected", value), *((run, outputs[name]) for run, outputs in runs.items())]:
            measured = answer["outputs"].get(label, {}).get(name)
            cells = f"{measured['relative_l2']:13.2e}" if measured else " " * 13
            finite = np.abs(got[np.isfinite(got)].astype(np.float64))
            peak = float(finite.max()) if finite.size else float("nan")
            first = " ".join(f"{float(v):.6g}" for v in _where(about, expected, runs, name, got))
            print(f"  {label:12}{cells}{int((~np.isfinite(got)).sum()):12}{peak:11.3g}   {first}")
    for run, how in answer["died"].items():
        print(f"\n{run}: {how}")
    if answer.get("fatal"):
        print(f"its last words: {answer['fatal']}")
    if answer["reported"]:
        print(f"\nthe GPU reported, without failing: {answer['reported']}")
    words = {
        SAME: f"REPRODUCES: {about['cause']}",
        FIXED: "DOES NOT REPRODUCE: everything is right here",
        DIFFERENT: "WRONG IN ANOTHER WAY than what was recorded",
        UNTESTED: "CANNOT BE TESTED here",
    }
    print(f"\n{words[answer['result']]}{': ' + answer['why'] if answer['why'] else ''}")


def _where(about: Any, expected: Any, runs: Any, name: str, got: np.ndarray) -> np.ndarray:
    """Four values from the place where the run that decides is furthest off."""
    right = np.asarray(expected[name], np.float64).reshape(-1)
    start = 0
    if runs:
        first = "GPU, fp32" if about["cause"] == "wrong-kernel" and "GPU, fp32" in runs else next(iter(runs))
        seen = np.asarray(runs[first][name], np.float64).reshape(-1)
        with np.errstate(invalid="ignore"):
            apart = np.where(np.isfinite(seen), np.abs(seen - right), np.inf)
        start = max(0, min(int(np.argmax(apart)), right.size - 4))
    return np.asarray(got).reshape(-1)[start : start + 4]


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("ai-edge-litert")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    try:
        code = _child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
    except Exception:  # an exit code of 1 would say that it reproduces
        traceback.print_exc()
        code = CANNOT_TEST
    sys.stdout.flush()
    if "-v" not in sys.argv and "--verbose" not in sys.argv:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the C++ side prints when it is torn down
    sys.exit(code)
