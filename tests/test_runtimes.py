"""Environments for other versions: made once, whole or not at all. What pip does is faked where it is not the point."""

from __future__ import annotations

import sys
import threading
import venv
from pathlib import Path

import pytest

from bisect_litert.errors import BisectError, RunnerError
from bisect_litert.versions import runtimes
from bisect_litert.versions.runtimes import RuntimeUnavailableError, is_version, nearest, resolve

OFFERED = "1.4.0, 2.0.3, 2.1.0rc1, 2.1.2, 2.1.5, 2.1.6, 2.2.0, 2.3.0"

# Stands in for pip: puts packages of the right names into the environment whose interpreter runs it.
INSTALL = """
import pathlib, sys, sysconfig, time
version, log, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
with log.open("a") as file:
    file.write(version + "\\n")
time.sleep(seconds)
site = pathlib.Path(sysconfig.get_path("purelib"))
for name in ("numpy", "ai_edge_litert"):
    (site / name).mkdir()
    (site / name / "__init__.py").write_text("")
(site / "ai_edge_litert" / "compiled_model.py").write_text("")
info = site / f"ai_edge_litert-{version}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: ai-edge-litert\\nVersion: {version}\\n")
"""


class Pip:
    """What the fake installer was asked for."""

    def __init__(self, log: Path) -> None:
        self.log, self.installs, self.seconds = log, "", 0.0

    def command(self, python: Path, packages: list[str]) -> list[str]:
        wanted = packages[-1].partition("==")[2]
        return [str(python), "-c", INSTALL, self.installs or wanted, str(self.log), str(self.seconds)]

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    monkeypatch.setattr(runtimes, "folder", lambda: tmp_path / "cache")
    made = Pip(tmp_path / "pip.log")
    monkeypatch.setattr(runtimes, "_installer", made.command)
    return made


def left_over(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache").iterdir() if not p.name.endswith(".lock"))


def test_an_environment_is_made_once(pip: Pip, tmp_path: Path) -> None:
    said: list[str] = []
    first, second = resolve("2.1.6", said.append), resolve("2.1.6", said.append)
    assert first == second
    assert first.version == "2.1.6"
    assert Path(first.python).is_relative_to(tmp_path / "cache" / "2.1.6")
    assert pip.asked == ["2.1.6"]
    assert said == ["make an environment for ai-edge-litert 2.1.6, once"]
    assert runtimes.cached() == (first,)
    assert left_over(tmp_path) == ["2.1.6"]


def test_versions_are_listed_in_their_order(pip: Pip) -> None:
    for version in ("2.1.10", "2.1.9"):
        resolve(version)
    assert [r.version for r in runtimes.cached()] == ["2.1.9", "2.1.10"]


@pytest.mark.parametrize("damage", ["no interpreter", "no package", "another version"])
def test_a_broken_one_is_made_again(pip: Pip, damage: str) -> None:
    python = Path(resolve("2.1.6").python)
    site = next(python.parents[1].rglob("ai_edge_litert"))
    if damage == "no interpreter":
        python.unlink()
    elif damage == "no package":
        (site / "compiled_model.py").unlink()
    else:
        info = next(site.parent.glob("*.dist-info")) / "METADATA"
        info.write_text(info.read_text().replace("2.1.6", "2.3.0"))
    assert resolve("2.1.6").version == "2.1.6"
    assert pip.asked == ["2.1.6", "2.1.6"]


def test_runs_at_the_same_time_share_one(pip: Pip) -> None:
    pip.seconds = 0.5
    found: list[runtimes.Runtime] = []
    threads = [threading.Thread(target=lambda: found.append(resolve("2.1.6"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert pip.asked == ["2.1.6"]


def test_one_that_does_not_hold_what_was_asked_for_is_not_kept(pip: Pip, tmp_path: Path) -> None:
    pip.installs = "2.3.0"
    with pytest.raises(RuntimeUnavailableError, match=r"installs but does not start here: it says it is 2\.3\.0\."):
        resolve("2.1.6")
    assert left_over(tmp_path) == []


REFUSED = "ERROR: Could not find a version that satisfies the requirement ai-edge-litert==2.1.7 (from versions: {})"
MISSING = "The package index has no ai-edge-litert 2.1.7 for Python"


@pytest.mark.parametrize(
    ("printed", "error", "message", "hint"),
    [
        (REFUSED.format(OFFERED), RuntimeUnavailableError, MISSING, "Nearest: 2.1.6, 2.1.5, 2.1.2."),
        (REFUSED.format("none"), RunnerError, "the package index offers no version of ai-edge-litert", "the network"),
        ("  × No solution found:\n  ╰─▶ there is no version of ai-edge-litert==2.1.7", RuntimeUnavailableError, MISSING,
         "pip index versions"),
        ("ERROR: OSError: [Errno 28] No space left on device", RunnerError, "No space left on device", "the disk"),
    ],
)  # fmt: skip
def test_what_pip_could_not_do_is_one_sentence(
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: str, error: type[BisectError], message: str,
    hint: str,
) -> None:  # fmt: skip
    command = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", printed]
    monkeypatch.setattr(runtimes, "_installer", lambda python, packages: command)
    with pytest.raises(error) as caught:
        resolve("2.1.7")
    assert message in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
    assert hint in caught.value.hint
    assert left_over(tmp_path) == []


def test_pip_itself_names_the_versions_there_are() -> None:
    with pytest.raises(BisectError) as caught:
        resolve("2.1.99")
    if isinstance(caught.value, RunnerError):
        pytest.skip(caught.value.message)
    assert "no ai-edge-litert 2.1.99 for Python" in caught.value.message
    assert caught.value.hint.startswith("Nearest: 2.1.")


def test_an_interpreter_stands_for_its_version(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path(resolve("2.1.6").python)
    link = tmp_path / "python-of-mine"
    link.write_text(f'#!/bin/sh\nexec {made} "$@"\n')
    link.chmod(0o755)
    # What this interpreter is told to import from must not reach another one.
    stranger = tmp_path / "path"
    (stranger / "ai_edge_litert").mkdir(parents=True)
    (stranger / "ai_edge_litert" / "__init__.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.setenv("PYTHONPATH", str(stranger))
    assert resolve(str(link)) == runtimes.Runtime("2.1.6", str(link), str(link))


def test_an_interpreter_that_cannot_run_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeUnavailableError, match="is neither a version of ai-edge-litert nor a Python interpreter"
    ):
        resolve(str(tmp_path / "nowhere"))
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    with pytest.raises(
        RuntimeUnavailableError, match="cannot run ai-edge-litert: ModuleNotFoundError: No module named"
    ):
        resolve(str(python))


def test_what_is_a_version_and_which_is_near() -> None:
    assert all(map(is_version, ("2.1.6", "2.4.0rc1", "2", "2.4.0.dev20260101")))
    assert not any(map(is_version, ("python3.11", "./2.1.6", "", "2.1.x", "/usr/bin/python3")))
    offered = OFFERED.split(", ")
    assert nearest("2.1.4", offered) == ("2.1.5", "2.1.6", "2.1.2")
    assert nearest("9.0", offered) == ("2.3.0", "2.2.0", "2.1.6")
    assert nearest("2.1.0", ["2.1.0rc1"]) == ("2.1.0rc1",)
