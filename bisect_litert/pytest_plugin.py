"""A pytest fixture that asserts that a model comes out right on the GPU.

    def test_encoder(bisect_litert):
        bisect_litert(Encoder().eval(), (torch.randn(1, 16, 64),), blocks="encoder.*")

Installed with the package; nothing heavy is imported before a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from bisect_litert.record import RunRecord


class Checker(Protocol):
    """What the fixture gives."""

    def __call__(
        self, model: Any, inputs: Any = None, *, blocks: str | Sequence[str] = (), name: str = "", **options: Any
    ) -> RunRecord:
        """Bisects a model and fails the test if it diverges or cannot be tested.

        Args:
            model: A torch.nn.Module, or a model as on the command line: "model.py", "model.py:name".
            inputs: For a module: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
            blocks: A glob over module paths, or several.
            name: How the report calls it.
            **options: Fields of `BisectRequest`, such as no_gpu, fp32, strict, output_limit.

        Returns:
            The run record, when nothing diverges.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --litert-emulated, and the setting of the same name."""
    group = parser.getgroup("bisect-litert")
    group.addoption(
        "--litert-emulated",
        action="store_true",
        default=False,
        help="bisect_litert: judge emulated fp16, GPU or not",
    )
    parser.addini(
        "litert_without_gpu",
        "bisect_litert: what a test does where there is no GPU: skip, fail, or emulate (judge emulated fp16)",
        default="skip",
    )


@pytest.fixture(name="bisect_litert")
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Checker:
    """Asserts that a model has no divergence on the GPU: `bisect_litert(model, inputs, blocks="encoder.*")`."""
    count = 0

    def check(
        model: Any, inputs: Any = None, *, blocks: str | Sequence[str] = (), name: str = "", **options: Any
    ) -> RunRecord:
        from bisect_litert.errors import ExitCode
        from bisect_litert.reports.outcome import exit_code

        __tracebackhide__ = True
        nonlocal count
        count += 1
        if request.config.getoption("--litert-emulated"):
            options.setdefault("no_gpu", True)
        folder = tmp_path / f"bisect-run-{count}"
        record, trouble = _run(model, inputs, blocks, name, folder, options)
        if record is None:
            pytest.fail(trouble, pytrace=False)
        emulated = not options.get("no_gpu") and record.target.endswith("no GPU")
        if emulated:
            _without_gpu(request.config, record)
        if record.verdict.diverged or exit_code(record) is ExitCode.CANNOT_TEST:
            pytest.fail(failure(record, folder), pytrace=False)
        return record

    return check


def _run(
    model: Any, inputs: Any, blocks: str | Sequence[str], name: str, folder: Path, options: dict[str, Any]
) -> tuple[RunRecord | None, str]:
    """Returns the record, or what to say when there is none."""
    from bisect_litert.entrances import bisect, run_bisection
    from bisect_litert.errors import BisectError
    from bisect_litert.request import BisectRequest

    patterns = (blocks,) if isinstance(blocks, str) else tuple(blocks)
    try:
        if isinstance(model, (str, Path)):
            if inputs is not None:
                raise TypeError("a model file brings its own inputs; leave them out, or give the module itself")
            asked = BisectRequest(model=str(model), blocks=patterns, out=folder, **options)
            return run_bisection(asked, lambda _: None), ""
        return bisect(model, inputs, blocks=patterns, out=folder, name=name, **options), ""
    except BisectError as error:
        told = [f"bisect-litert could not test the model: {error.message}", error.hint, error.detail]
        return None, "\n".join(line for line in told if line)


def _without_gpu(config: pytest.Config, record: RunRecord) -> None:
    said = next((note for note in record.verdict.notes if "stands in for the GPU" in note), "There is no GPU here.")
    wish = config.getini("litert_without_gpu")
    if wish == "skip":
        pytest.skip(said)
    if wish == "fail":
        pytest.fail(said, pytrace=False)
    if wish != "emulate":
        raise pytest.UsageError(f"litert_without_gpu is {wish!r}: write fail, skip or emulate")


def failure(record: RunRecord, folder: Path) -> str:
    """Returns what a failing test prints: the verdict, the culprits, the blocks, and where the run is."""
    from rich.console import Console

    from bisect_litert.reports import console as text

    console = Console(width=100, color_system=None, highlight=False)
    with console.capture() as capture:
        text.render(record, console, folder=folder, model=record.model)
    return capture.get().strip("\n")
