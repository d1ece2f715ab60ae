"""What a result depends on: versions and platform, without anything that names a person or a machine."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGES = ("bisect-litert", "torch", "litert-torch", "litert-converter", "ai-edge-litert", "numpy", "transformers")


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
