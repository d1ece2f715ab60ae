"""What a result depends on: versions and platform, without anything that names a person or a machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from bisect_litert.record import RunRecord

PACKAGES = ("bisect-litert", "torch", "litert-torch", "litert-converter", "ai-edge-litert", "numpy", "transformers")
OTHER_RUNTIME = "this machine, another environment"
"""The device of GPU jobs that ran here, under another ai-edge-litert."""


def describe() -> dict[str, str]:
    """Returns versions and platform in reading order; packages that are not installed are left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["python"] = platform.python_version()
    found["platform"] = f"{platform.system()} {platform.machine()}"
    return found


def of_device(name: str, versions: Mapping[str, str], lacks: Sequence[str] = ()) -> dict[str, str]:
    """Returns entries for the machine that ran the GPU jobs, when that is not the one that ran everything else.

    Args:
        name: What to call it; the name it gave itself if empty.
        versions: What its worker said of itself (JobResult.versions).
        lacks: What its runtime has no way to ask for (JobResult.lacks).
    """
    told = {f"device {key}": value for key, value in versions.items() if key not in ("host", "device", "gpu")}
    without = {"device lacks": ", ".join(lacks)} if lacks else {}
    return {"device": name or versions.get("host", "") or "unnamed", **told, **without}


def other_runtime(record: RunRecord) -> str:
    """Returns the version of ai-edge-litert that GPU jobs ran under on this machine, if not the installed one."""
    told = record.environment
    version = told.get("device ai-edge-litert", "") if told.get("device") == OTHER_RUNTIME else ""
    return version if version != told.get("ai-edge-litert") else ""
