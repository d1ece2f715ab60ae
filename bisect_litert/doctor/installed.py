"""What is installed: Python, the packages with the versions they should have, and drivers."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from bisect_litert.records.checkup import Check, State

PACKAGE = "bisect-litert"
ALSO = ("litert-converter", "transformers")
"""Worth naming where they are there."""
FOR_MODELS = ("torch", "litert-torch")
"""Only models in PyTorch need these; a .tflite file does not."""
OLDEST, NEWEST = (3, 10), (3, 13)
_ICD_FOLDERS = (
    "/usr/local/etc/vulkan/icd.d",
    "/usr/local/share/vulkan/icd.d",
    "/etc/vulkan/icd.d",
    "/usr/share/vulkan/icd.d",
)
_SYSTEM_PACKAGES = ("libvulkan1", "mesa-vulkan-drivers")


def python() -> Iterator[Check]:
    """Looks at the interpreter."""
    version = platform.python_version()
    said = f"Python {version} on {platform.system()} {platform.machine()}"
    facts = {"python": version, "platform": f"{platform.system()} {platform.machine()}"}
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        yield Check("python", State.OK, said, facts=facts)
    else:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        yield Check("python", State.BAD, said, f"Install {PACKAGE} with Python {wanted}.", facts)


def packages() -> Iterator[Check]:
    """Looks at the versions of what is installed, and never imports any of it."""
    wanted = _requirements()
    have = {name: _version(name) for name in dict.fromkeys([PACKAGE, *wanted, *ALSO])}
    wrong = [
        name
        for name, rule in wanted.items()
        if have[name] and not rule.specifier.contains(have[name], prereleases=True)
    ]
    missing = [name for name in wanted if not have[name]]
    shown = [PACKAGE, *FOR_MODELS, "litert-converter", "ai-edge-litert", "numpy", "transformers"]
    said = ", ".join(f"{name} {have[name]}" for name in shown if have.get(name))
    facts = {name: version for name, version in have.items() if version}
    needed = [name for name in missing if name not in FOR_MODELS]
    if wrong or needed:
        rules = " ".join(f'"{wanted[name]}"' for name in (*wrong, *needed))
        trouble = [f"{name} {have[name]} is not {wanted[name].specifier}" for name in wrong]
        trouble += [f"{name} is missing" for name in needed]
        fix = f"{sys.executable} -m pip install {rules}"
        yield Check("packages", State.BAD, f"{'; '.join(trouble)} (installed: {said})", fix, facts)
    elif missing:
        rules = " ".join(f'"{wanted[name]}"' for name in missing)
        fix = f"For models in PyTorch: {sys.executable} -m pip install {rules}"
        yield Check("packages", State.NOTE, f"{said}; no {' and '.join(missing)}: .tflite files only", fix, facts)
    else:
        yield Check("packages", State.OK, said, facts=facts)


def _requirements() -> dict[str, Requirement]:
    try:
        listed = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return {}
    rules = [Requirement(text) for text in listed]
    return {rule.name: rule for rule in rules if rule.marker is None or rule.marker.evaluate({"extra": ""})}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def drivers() -> Iterator[Check]:
    """Looks at what is installed of Vulkan, the way to the GPU on Linux; whether it is of use, the runtime says."""
    if not sys.platform.startswith("linux"):
        yield Check("driver", State.OK, f"{platform.system()} {platform.release()} brings its own")
        return
    found = _driver_files()
    versions = {**_system_packages(), **_nvidia()}
    told = [f"{name} {version}" for name, version in versions.items()]
    facts = {**versions, "vulkan drivers": ", ".join(path.name for path in found)}
    chosen = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if chosen:
        gone = [path for path in chosen.split(os.pathsep) if not Path(path).exists()]
        if gone:
            said = f"VK_DRIVER_FILES or VK_ICD_FILENAMES names {gone[0]}, which is not there"
            yield Check("driver", State.BAD, said, "Unset it, or name a driver's .json file.", facts)
            return
        told.append(f"chosen by the environment: {chosen}")
    if not found and not chosen:
        fix = (
            "Install your GPU vendor's driver, or Mesa's software driver (scripts/vulkan does it on Debian and Ubuntu)."
        )
        yield Check("driver", State.BAD, "; ".join(["no Vulkan driver is installed", *told]), fix, facts)
    else:
        kinds = ", ".join(sorted({path.name.split("_icd")[0].split(".")[0] for path in found}))
        yield Check(
            "driver", State.OK, ", ".join([*told, *([f"Vulkan drivers: {kinds}"] if kinds else [])]), facts=facts
        )


def _driver_files() -> list[Path]:
    """The drivers' own files whose library is there to be loaded, as far as they name it by its path."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "vulkan/icd.d"
    found = []
    for folder in (home, *map(Path, _ICD_FOLDERS)):
        for path in sorted(folder.glob("*.json")):
            try:
                library = str(json.loads(path.read_text(encoding="utf-8"))["ICD"]["library_path"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if "/" not in library or (path.parent / library).exists():
                found.append(path)
    return found


def _system_packages() -> dict[str, str]:
    query = shutil.which("dpkg-query")
    if query is None:
        return {}
    try:
        done = subprocess.run(
            [query, "-W", "-f", "${Package} ${Version}\n", *_SYSTEM_PACKAGES],
            capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = [line.split() for line in done.stdout.splitlines()]
    return {parts[0]: parts[1] for parts in lines if len(parts) == 2}


def _nvidia() -> dict[str, str]:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return {}
    version = re.search(r"\b(\d{3}\.\d[\d.]*)\b", text)
    return {"nvidia": version[1]} if version else {}
