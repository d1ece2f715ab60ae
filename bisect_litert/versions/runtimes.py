"""Other versions of ai-edge-litert, each in a virtual environment of its own that is made once and kept.

They lie in the user's cache folder, `runtimes/VERSION`, with numpy and ai-edge-litert and nothing of ours: the worker
is one file that needs no more. An environment is made beside its place and renamed into it, under a lock, so that runs
at the same time share one and none sees half of it.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock
from packaging.version import InvalidVersion, Version

from bisect_litert.errors import RunnerError, UsageError
from bisect_litert.versions.interpreters import foreign_environment

PACKAGE = "ai-edge-litert"
UNDECLARED = ("ml_dtypes",)
"""What some versions import without saying so (2.1.6)."""
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)*")
_MAKE_SECONDS = 900.0
_ASK_SECONDS = 60.0
_ASK = f"""
from importlib import metadata
import numpy
import ai_edge_litert.compiled_model
for name in ("{PACKAGE}", "{PACKAGE}-nightly"):
    try:
        print(metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
else:
    print("unknown")
"""


class RuntimeUnavailableError(UsageError):
    """There is no such runtime to be had."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An interpreter with an ai-edge-litert."""

    version: str
    """As the package says; "unknown" for a build without metadata."""
    python: str
    """The interpreter's path."""
    asked: str
    """What the user named it by: a version, or the path."""


def is_version(text: str) -> bool:
    """Whether a text names a version, "2.1.6", and not an interpreter."""
    return _VERSION.fullmatch(text) is not None


def order(version: str) -> tuple[int, ...]:
    """A key that sorts versions; a pre-release counts as its release, and what is no version comes first."""
    try:
        return Version(version).release
    except InvalidVersion:
        return ()


def folder() -> Path:
    """Where the environments lie."""
    return platformdirs.user_cache_path("bisect-litert") / "runtimes"


def cached() -> tuple[Runtime, ...]:
    """Returns the environments that were made before, oldest version first, without a look inside."""
    found = [Runtime(p.name, str(_python(p)), p.name) for p in folder().glob("*") if is_version(p.name) and p.is_dir()]
    return tuple(sorted(found, key=lambda r: order(r.version)))


def resolve(asked: str, say: Callable[[str], None] = lambda _: None) -> Runtime:
    """Returns the runtime for a version, made now if need be, or for an interpreter's path.

    Args:
        asked: "2.1.6", or the path or name of a Python interpreter.
        say: Told when something slow begins.

    Raises:
        RuntimeUnavailableError: No such version for this Python, or no such interpreter, or one without a runtime.
        RunnerError: The environment could not be made.
    """
    if is_version(asked):
        return _of_version(asked, say)
    python = shutil.which(asked)
    if python is None:
        raise RuntimeUnavailableError(
            f"{asked} is neither a version of {PACKAGE} nor a Python interpreter.",
            hint="Give a version such as 2.1.6, or the path of an interpreter that has numpy and ai-edge-litert.",
        )
    version, trouble = _ask(python)
    if not version:
        raise RuntimeUnavailableError(
            f"{asked} cannot run {PACKAGE}: {trouble}.", hint=f"{asked} -m pip install numpy {PACKAGE} {UNDECLARED[0]}"
        )
    return Runtime(version, python, asked)


def _of_version(version: str, say: Callable[[str], None]) -> Runtime:
    place = folder() / version
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f".{version}.lock")):
            found, _ = _ask(str(_python(place))) if place.exists() else ("", "")
            if found != version:
                say(f"make an environment for {PACKAGE} {version}, once")
                _make(version, place)
    except OSError as error:
        raise _unwritable(place, error) from None
    return Runtime(version, str(_python(place)), version)


def _make(version: str, place: Path) -> None:
    for left in place.parent.glob(f".{version}-*"):  # by one that was killed; the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=place.parent))
    try:
        python = _python(made)
        packages = ["numpy", *UNDECLARED, f"{PACKAGE}=={version}"]
        for command in (_bare_environment(made), _installer(python, packages)):
            done = _run(command, _MAKE_SECONDS)
            if done.returncode:
                raise _not_installed(version, done.stdout + done.stderr)
        found, trouble = _ask(str(python))
        if found != version:
            raise RuntimeUnavailableError(
                f"{PACKAGE} {version} installs but does not start here: {trouble or f'it says it is {found}'}.",
                hint="Give another version, or the path of an interpreter in which it works.",
            )
        shutil.rmtree(place, ignore_errors=True)
        made.rename(place)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _bare_environment(made: Path) -> list[str]:
    if _has_pip() or not shutil.which("uv"):
        # Without a pip of its own, which costs seconds to unpack, where this interpreter's can do the installing.
        return [sys.executable, "-m", "venv", *(["--without-pip"] if _has_pip() else []), str(made)]
    return ["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(made)]


def _installer(python: Path, packages: list[str]) -> list[str]:
    options = ["install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    if _has_pip():
        return [sys.executable, "-m", "pip", "--python", str(python), *options, *packages]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--quiet", "--python", str(python), *packages]
    return [str(python), "-m", "pip", *options, *packages]


def _has_pip() -> bool:
    """Whether this interpreter has a pip that installs into others (from 22.3)."""
    from importlib import metadata

    return importlib.util.find_spec("pip") is not None and order(metadata.version("pip")) >= (22, 3)


def _ask(python: str) -> tuple[str, str]:
    """An interpreter's ai-edge-litert version, or nothing and what is wrong, in a few words."""
    try:
        done = _run([python, "-c", _ASK], _ASK_SECONDS)
    except OSError as error:
        return "", str(error.strerror)
    lines = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
    last = lines[-1].strip() if lines else f"it ended with {done.returncode}"
    return (last, "") if not done.returncode and lines else ("", last.rstrip("."))


def _run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, env=foreign_environment(),
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {seconds:g} s")


def _not_installed(version: str, text: str) -> RunnerError | RuntimeUnavailableError:
    """Says why pip, or uv, did not install a version."""
    listed = re.search(r"from versions: ([^)]*)\)", text)
    here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    versions = [v for v in re.split(r",\s*", listed[1]) if is_version(v)] if listed else []
    if versions:
        near = ", ".join(nearest(version, versions))
        return RuntimeUnavailableError(
            f"The package index has no {PACKAGE} {version} for {here}.", hint=f"Nearest: {near}."
        )
    if re.search(r"no version of|No solution found|not find a version", text) and not listed:
        return RuntimeUnavailableError(
            f"The package index has no {PACKAGE} {version} for {here}.",
            hint=f"See which it has: python -m pip index versions {PACKAGE}",
        )
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*(ERROR|error|×)", line)]
    last = (lines or text.strip().splitlines() or ["it said nothing"])[-1]
    if listed:
        last = f"the package index offers no version of {PACKAGE} at all"
    return RunnerError(
        f"The environment for {PACKAGE} {version} could not be made: {last.rstrip('.')}.",
        hint="Check the network, the space on the disk and pip's settings, "
        "or give the path of an interpreter that has that version.",
        detail="\n".join(text.splitlines()[-12:]),
    )


def nearest(version: str, versions: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The versions nearest to one that is not there; of two as near, the newer one. Pre-releases only if all are."""
    wanted = order(version)

    def distance(other: str) -> tuple[int, int]:
        numbers = order(other)
        shared = 0
        while shared < min(len(wanted), len(numbers)) and wanted[shared] == numbers[shared]:
            shared += 1
        here, there = ((v[shared] if shared < len(v) else 0) for v in (wanted, numbers))
        return -shared, abs(here - there)

    known = set(versions)
    released = {v for v in known if re.fullmatch(r"[\d.]+", v)} or known
    return tuple(sorted(sorted(released, key=order, reverse=True), key=distance)[:count])


def _python(environment: Path) -> Path:
    windows = sys.platform == "win32"
    return environment / ("Scripts/python.exe" if windows else "bin/python")


def _unwritable(place: Path, error: OSError) -> RunnerError:
    return RunnerError(
        f"The environment {place} cannot be made: {error.strerror or error}.",
        hint="Free some space, or let XDG_CACHE_HOME name another folder.",
    )
