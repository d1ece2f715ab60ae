"""A folder for a device that cannot be reached: what to run there, as files and a manifest, and what came back.

    roundN/manifest.json, *.tflite, inputs/    everything that round needs; goes to the device as it is
    results/ENTRY/NNN.raw                      what an entry's outputs held, brought back by hand

Rounds add up: an entry keeps its name, and results of all rounds lie side by side.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bisect_litert.devices.device_steps import readme
from bisect_litert.devices.jobs import CRASHED, FAILED, MAPPED_BYTES, OK, TIMED_OUT, Job, JobResult, read_text
from bisect_litert.devices.npy_file import read_npy
from bisect_litert.devices.request_folder import unwritable
from bisect_litert.devices.worker import BYTE_SENTINEL, FLOAT_SENTINELS, count_unwritten, fit_input
from bisect_litert.errors import ExportFolderError
from bisect_litert.graphs.graph import Graph
from bisect_litert.wording import some_of

MANIFEST, RESULTS, ABOUT = "manifest.json", "results", "device.json"
SCHEMA = 1
_PIECE = 1 << 20
_CLOCKS = 60.0
"""Seconds that the clocks of two machines may be apart."""
_KNOWN = (ABOUT, "status.json", "started", "stderr.log", "log.txt")


class DeviceFolder:
    """The folder, with what its manifests ask for and what its results answer.

    Raises:
        ExportFolderError: A manifest is damaged.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.entries: dict[str, dict[str, Any]] = {}
        """By key (`key_of`)."""
        self.rounds = 0
        self.doubts: dict[str, None] = {}
        """What makes results look like those of an earlier export, in sentences."""
        self._made: dict[str, float] = {}
        """When each entry was asked for, in seconds since 1970, by key."""
        for path in sorted(root.glob(f"round*/{MANIFEST}"), key=lambda p: int(p.parent.name[5:] or 0)):
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                self.entries.update((entry["key"], entry) for entry in data["entries"])
                self._made.update((entry["key"], float(data.get("created", 0.0))) for entry in data["entries"])
                self.rounds = max(self.rounds, int(data["round"]))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ExportFolderError(f"{path} cannot be read: {error}.", hint="Export again.") from None

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def write_round(self, jobs: Mapping[str, Job]) -> Path:
        """Writes the next round.

        Args:
            jobs: By key.

        Returns:
            Its folder.

        Raises:
            RunnerError: It cannot be written.
        """
        folder = self.root / f"round{self.rounds + 1}"
        try:
            (folder / "inputs").mkdir(parents=True, exist_ok=True)
            models: dict[str, str] = {}
            taken = {entry["name"] for entry in self.entries.values()}
            entries = []
            for key, job in jobs.items():
                name = job.id if job.id not in taken else f"{job.id}-r{self.rounds + 1}"
                taken.add(name)
                entries.append(_entry(key, name, job, folder, models))
            manifest = {
                "schema": SCHEMA,
                "round": self.rounds + 1,
                "created": time.time(),
                "byte_order": "little",
                "sentinels": {**{n: f"0x{v:x}" for n, v in FLOAT_SENTINELS.items()}, "other": f"0x{BYTE_SENTINEL:x}"},
                "entries": entries,
            }
            (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
            (folder / "README.txt").write_text(readme(folder.name, entries), encoding="utf-8")
        except OSError as error:
            raise unwritable(folder, error) from None
        self.rounds += 1
        self.entries.update((entry["key"], entry) for entry in entries)
        return folder

    # -- what came back ------------------------------------------------------------------------------------------------

    def about(self) -> dict[str, str]:
        """What the device says of itself: "device", "gpu", "ai-edge-litert", "platform"; empty when it said nothing."""
        try:
            told = json.loads((self.root / RESULTS / ABOUT).read_text(encoding="utf-8"))
            return {str(name): str(value) for name, value in told.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def answer(self, key: str, job: Job) -> tuple[JobResult, str] | None:
        """What came back for a job, and what is wrong with it in a sentence; None when nothing did."""
        entry = self.entries.get(key)
        folder = self.root / RESULTS / entry["name"] if entry else None
        if entry is None or folder is None or not folder.is_dir() or self._is_stale(entry, folder):
            return None
        outputs: dict[str, np.ndarray] = {}
        unwritten: dict[str, int] = {}
        missing, wrong = [], []
        for output in entry["outputs"]:
            try:
                value = _read(folder, output)
            except ValueError as error:
                wrong.append(f"{output['name']} ({error})")
                continue
            if value is None:
                missing.append(output["name"])
                continue
            unwritten[output["name"]] = count_unwritten(value.reshape(-1).view(np.uint8), value.dtype)
            outputs[output["name"]] = value
        log = next((path for path in (folder / "log.txt", folder / "stderr.log") if path.is_file()), folder / "log.txt")
        common: dict[str, Any] = {"log_text": read_text(log), "log_path": log, "versions": self.about()}
        status, detail = _status(folder)
        if status == OK and not outputs:
            if wrong:
                status, detail = FAILED, f"no output can be used: {wrong[0]}"
            elif not (folder / "started").exists():
                return None
            else:
                status, detail = CRASHED, "it was started on the device and left nothing"
        said = _shortcomings(entry["name"], len(entry["outputs"]), missing, wrong) if status == OK else ""
        found = JobResult(job.id, status, detail, outputs if status == OK else {}, unwritten, **common)
        return found, said

    def _is_stale(self, entry: Mapping[str, Any], folder: Path) -> bool:
        """Whether the device says that results are another export's; where it says nothing, their age is noted."""
        told, name = read_text(folder / "started").strip(), entry["name"]
        if told:
            if told != entry.get("id"):
                self.doubts[f"Results of {name} were left out: they were made for an earlier export."] = None
                return True
            return False
        ages = [path.stat().st_mtime for output in entry["outputs"] for path in _files(folder, output)]
        if ages and max(ages) < self._made[entry["key"]] - _CLOCKS:
            self.doubts[
                f"Results of {name} are older than this export. If the device kept them from an earlier one, remove "
                "them there and here and run the entry again."
            ] = None
        return False

    def strangers(self) -> list[str]:
        """Results that no entry asks for: names that were changed on the way."""
        root = self.root / RESULTS
        names = {entry["name"] for entry in self.entries.values()}
        found = [path.name for path in sorted(root.glob("*")) if path.is_dir() and path.name not in names]
        for entry in self.entries.values():
            files = {Path(output["file"]).stem for output in entry["outputs"]}
            found += [
                f"{entry['name']}/{path.name}"
                for path in sorted((root / entry["name"]).glob("*"))
                if path.stem not in files and path.name not in _KNOWN
            ]
        return found

    def take(self, results: Path) -> None:
        """Copies results into the folder, beside those of other rounds.

        Raises:
            ExportFolderError: They are no results, or cannot be copied.
        """
        source = results / RESULTS if (results / RESULTS).is_dir() else results
        names = {entry["name"] for entry in self.entries.values()}
        if not source.is_dir() or not any(path.name in names for path in source.iterdir()):
            raise ExportFolderError(
                f"{results} holds no results of this export.",
                hint=f"It should have a folder for each entry: {', '.join(sorted(names)[:4])}.",
            )
        if source.resolve() == (self.root / RESULTS).resolve():
            return
        try:
            for entry in self.entries.values():
                new = source / entry["name"]
                told = read_text(new / "started").strip()
                old = self.root / RESULTS / entry["name"]
                if told and told != read_text(old / "started").strip():
                    shutil.rmtree(old, ignore_errors=True)  # of an earlier export
                for output in entry["outputs"]:
                    if _files(new, output):
                        for path in _files(old, output):  # .raw beside a new .npy, or the reverse
                            path.unlink()
            shutil.copytree(source, self.root / RESULTS, dirs_exist_ok=True)
        except OSError as error:
            raise ExportFolderError(f"{source} cannot be copied: {error}.", hint="Check both folders.") from None


def key_of(job: Job) -> str:
    """Names a job by what it runs, so that a later round or another process finds it again.

    The same run twice is one entry, unless the second is there to see whether the first repeats.
    """
    again = job.id.endswith("-again")
    what = [_hash(job.model), job.accelerator, job.fp32, job.fallback, sorted(job.env.items()), again]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]


def _entry(key: str, name: str, job: Job, folder: Path, models: dict[str, str]) -> dict[str, Any]:
    digest = _hash(job.model)
    if digest not in models:
        models[digest] = f"{name}.tflite"
        shutil.copyfile(job.model, folder / models[digest])
    graph = Graph.read(job.model)
    signatures = graph.model.signatureDefs or []
    inputs = []
    for position, port in enumerate(graph.inputs):
        tensor = graph.tensors[port.tensor]
        dtype = np.dtype(tensor.dtype.lower())
        array = fit_input(port.name, np.asarray(job.inputs[port.name]), dtype, tensor.shape)
        stem = f"inputs/{re.sub(r'[^A-Za-z0-9_.-]+', '_', port.name)}-{hashlib.sha256(array.tobytes()).hexdigest()[:8]}"
        if not (folder / f"{stem}.raw").exists():
            np.save(folder / f"{stem}.npy", array)
            (folder / f"{stem}.raw").write_bytes(array.astype(dtype.newbyteorder("<")).tobytes())
        raw = folder / f"{stem}.raw"
        files = {"npy": f"{stem}.npy", "raw": f"{stem}.raw", "sha256": _hash(raw)}
        inputs.append({**_port(position, port.name, tensor.shape, dtype), **files})
    outputs = []
    listed = signatures[0].outputs if signatures else graph.outputs
    order = [_text(getattr(port, "name", "")) for port in listed]
    for position, port in enumerate(sorted(graph.outputs, key=lambda port: order.index(port.name))):
        tensor = graph.tensors[port.tensor]
        described = _port(position, port.name, tensor.shape, np.dtype(tensor.dtype.lower()))
        outputs.append({**described, "file": f"{name}/{position:03d}.raw", "tensor": tensor.name})
    return {
        "name": name,
        "key": key,
        "id": hashlib.sha256("".join([key, *(given["sha256"] for given in inputs)]).encode()).hexdigest()[:24],
        "model": models[digest],
        "sha256": digest,
        "signature": _text(signatures[0].signatureKey) if signatures else "",
        "accelerators": ["gpu"] if job.accelerator == "gpu" else ["gpu", "cpu"],
        "fallback": ["gpu", "cpu"] if job.accelerator == "gpu" and job.fallback else [],
        "precision": "fp32" if job.fp32 else "default",
        "environment": dict(job.env),
        "inputs": inputs,
        "outputs": outputs,
    }


def _port(position: int, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return {"index": position, "name": name, "shape": list(shape), "dtype": dtype.name, "bytes": size}


def _read(folder: Path, output: Mapping[str, Any]) -> np.ndarray | None:
    """Raises: ValueError: The file is no such tensor."""
    dtype, shape = np.dtype(output["dtype"]), tuple(output["shape"])
    path = max(_files(folder, output), key=lambda p: p.stat().st_mtime, default=None)  # the last that was written
    if path is None:
        return None
    if path.suffix == ".raw":
        size = path.stat().st_size
        if size != output["bytes"]:
            raise ValueError(f"{size} bytes, the manifest says {output['bytes']}")
        mapped = size > MAPPED_BYTES
        value = np.memmap(path, dtype, "r") if mapped else np.frombuffer(path.read_bytes(), dtype)
        return value.reshape(shape)
    loaded = read_npy(path)
    if loaded.shape != shape or loaded.dtype != dtype:
        raise ValueError(f"{loaded.dtype} {list(loaded.shape)}, the manifest says {dtype} {list(shape)}")
    return np.require(loaded, requirements="C")


def _files(folder: Path, output: Mapping[str, Any]) -> list[Path]:
    """The files that hold an output; one as a rule."""
    stem = Path(output["file"]).stem
    return [path for suffix in (".raw", ".npy") if (path := folder / f"{stem}{suffix}").is_file()]


def _status(folder: Path) -> tuple[str, str]:
    try:
        told = json.loads((folder / "status.json").read_text(encoding="utf-8"))
        status, error = str(told["status"]), " ".join(str(told.get("error", "")).split())
    except FileNotFoundError:
        return OK, ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        return FAILED, f"its status.json cannot be read: {problem}"
    return (status, error) if status in (OK, FAILED, CRASHED, TIMED_OUT) else (FAILED, error or f"status {status!r}")


def _shortcomings(name: str, total: int, missing: Sequence[str], wrong: Sequence[str]) -> str:
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {total} outputs are missing: {some_of(missing, 5)}")
    if wrong:
        parts.append(f"of the wrong size and left out: {some_of(wrong, 5)}")
    return f"Results of {name}: {'; '.join(parts)}." if parts else ""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _hash(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            whole.update(piece)
    return whole.hexdigest()
