"""Where a run writes and what it needs to have room: runtime folder, shader cache, disk, memory."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from bisect_litert.records.checkup import Check, State
from bisect_litert.versions import runtimes

DISK_BYTES = 1 << 30
"""Less than this is little: a tapped graph of a large model, its tensors, and an environment of 140 MB."""
MEMORY_BYTES = 2 << 30
"""Less than this is little: torch and the converter alone take more than one."""
_GIB = 1 << 30


def runtime_folder() -> Iterator[Check]:
    """Looks at XDG_RUNTIME_DIR, which Vulkan drivers want."""
    if sys.platform in ("win32", "darwin"):
        return
    name = os.environ.get("XDG_RUNTIME_DIR")
    if name is None:
        yield Check("XDG_RUNTIME_DIR", State.OK, "not set; every run makes a folder of its own for it")
        return
    fix = "Unset XDG_RUNTIME_DIR, or let it name a folder that only you can write to."
    try:
        mode = os.stat(name)
    except OSError as error:
        said = f"{name} cannot be used: {error.strerror}"
        yield Check("XDG_RUNTIME_DIR", State.BAD, said, fix)
        return
    if not stat.S_ISDIR(mode.st_mode) or not os.access(name, os.W_OK):
        yield Check("XDG_RUNTIME_DIR", State.BAD, f"{name} is no folder that can be written to", fix)
    else:
        yield Check("XDG_RUNTIME_DIR", State.OK, name)


def shader_cache() -> Iterator[Check]:
    """Looks at Mesa's shader cache: without it every run compiles all kernels again, which takes minutes."""
    if not sys.platform.startswith("linux"):
        return
    off = os.environ.get("MESA_SHADER_CACHE_DISABLE", "").lower()
    if off in ("1", "true", "yes", "y"):
        said = "switched off by MESA_SHADER_CACHE_DISABLE, so Mesa's drivers compile every kernel anew in every run"
        yield Check("shader cache", State.NOTE, said, "Unset MESA_SHADER_CACHE_DISABLE.")
        return
    own = os.environ.get("MESA_SHADER_CACHE_DIR")
    place = Path(own) if own else platformdirs.user_cache_path() / "mesa_shader_cache"
    trouble = _unwritable(place)
    if trouble:
        said = f"{place} cannot be written ({trouble}), so Mesa's drivers compile every kernel anew in every run"
        fix = "Make it writable, or let MESA_SHADER_CACHE_DIR name another folder."
        yield Check("shader cache", State.NOTE, said, fix)
    else:
        yield Check("shader cache", State.OK, str(place))


def disk() -> Iterator[Check]:
    """Looks at the room where runs, scratch files and environments go."""
    places = {"here": Path.cwd(), "scratch": Path(tempfile.gettempdir()), "cache": runtimes.folder()}
    facts, told, trouble = {}, [], []
    for name, place in places.items():
        cannot = _unwritable(place)
        if cannot:
            trouble.append(f"{place} cannot be written ({cannot})")
            continue
        free = shutil.disk_usage(_existing(place)).free
        facts[name] = f"{free}"
        told.append(f"{free / _GIB:.1f} GiB {name}")
        if free < DISK_BYTES:
            trouble.append(f"only {free / _GIB:.2f} GiB left in {place}")
    if trouble:
        fix = "Make room or allow writing there; --out, TMPDIR and XDG_CACHE_HOME name other places."
        yield Check("disk", State.BAD, "; ".join(trouble), fix, facts)
    else:
        yield Check("disk", State.OK, f"free: {', '.join(told)}", facts=facts)


def memory() -> Iterator[Check]:
    """Looks at the memory that is free."""
    free = _free_memory()
    if free is None:
        return
    said = f"{free / _GIB:.1f} GiB free, {os.cpu_count() or 1} cores"
    facts = {"bytes": f"{free}", "cores": f"{os.cpu_count() or 1}"}
    if free < MEMORY_BYTES:
        fix = "Close what needs much of it: PyTorch and the converter take more than 1 GiB besides the model."
        yield Check("memory", State.NOTE, said, fix, facts)
    else:
        yield Check("memory", State.OK, said, facts=facts)


def _free_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _existing(place: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next((path for path in (place, *place.parents) if path.exists()), Path("/"))


def _unwritable(place: Path) -> str:
    """Why nothing can be written there, or empty; a folder that is missing counts by the one it would be made in."""
    try:
        with tempfile.TemporaryFile(dir=_existing(place)):
            return ""
    except OSError as error:
        return error.strerror or str(error)
