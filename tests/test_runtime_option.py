"""Where an option takes a version: what it stands for reaches what runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import sample_record

from bisect_litert.bundles import bundling, replaying
from bisect_litert.cli import main
from bisect_litert.errors import ExitCode
from bisect_litert.matrix import plan_file
from bisect_litert.records.environment import OTHER_RUNTIME
from bisect_litert.versions import runtimes
from bisect_litert.versions.runtimes import Runtime

ROOT = Path(__file__).parent.parent


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that were asked for."""
    asked: list[str] = []

    def resolve(version: str, say: object = None) -> Runtime:
        asked.append(version)
        return Runtime(version, f"/environments/{version}/bin/python", version)

    monkeypatch.setattr(runtimes, "resolve", resolve)
    return asked


def test_replay_takes_a_version(
    resolved: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[str] = []

    def replay(bundle: Path, python: str) -> object:
        used.append(python)
        return SimpleNamespace(text="", summary=lambda: "same\n", exit_code=ExitCode.DIVERGED)

    monkeypatch.setattr(replaying, "replay", replay)
    for words in (["--python", "2.1.6"], ["--python", "/opt/python"], []):
        assert main(["replay", str(tmp_path), *words]) == ExitCode.DIVERGED
    assert resolved == ["2.1.6"]  # an interpreter's path is one already
    assert used[:2] == ["/environments/2.1.6/bin/python", "/opt/python"]


def test_bundle_takes_versions(resolved: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: list[tuple[str, ...]] = []

    def make(run: Path, wishes: bundling.Wishes, say: object) -> object:
        used.append((wishes.python, *wishes.pythons))
        return SimpleNamespace(summary=lambda: "")

    monkeypatch.setattr(bundling, "make_bundle", make)
    record = sample_record.overflow()
    record.save(tmp_path)
    assert main(["bundle", str(tmp_path), "--python", "2.1.6", "--python", "/opt/python"]) == ExitCode.OK
    assert used.pop() == ("", "/environments/2.1.6/bin/python", "/opt/python")
    assert resolved == ["2.1.6"]
    # Shrunk under the version that the run's GPU jobs ran under.
    told = {"ai-edge-litert": "2.3.0", "device": OTHER_RUNTIME, "device ai-edge-litert": "2.1.3"}
    replace(record, environment=told).save(tmp_path)
    assert main(["bundle", str(tmp_path)]) == ExitCode.OK
    assert used.pop() == ("/environments/2.1.3/bin/python",)
    assert main(["bundle", str(tmp_path), "--runner", "ssh box"]) == ExitCode.OK
    assert used.pop() == ("",)


def test_the_nightly_plan_names_examples_that_are_there() -> None:
    found = plan_file.read(ROOT / "examples" / "runtimes.toml")
    assert all((found.folder / model.model).is_file() for model in found.models)
    assert [target.runtime for target in found.targets][:-1] == ["2.1.3", "2.1.5", "2.1.6", "2.2.0"]
