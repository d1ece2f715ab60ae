"""Every module has its place in the data flow."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def test_modules_in_folders_stand_in_the_layers_each_on_its_own() -> None:
    # import-linter's own check of that ends at the folders.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    listed = {name for layer in contract["layers"] for name in re.findall(r"[\w.]+", layer)}
    folders = contract["exhaustive_ignores"]
    there = {f"{f}.{p.stem}" for f in folders for p in (ROOT / "bisect_litert" / f).glob("*.py")}
    modules = {name for name in there if not name.endswith(".__init__")}
    assert modules == {name for name in listed if "." in name}
    assert len(modules) > 100
