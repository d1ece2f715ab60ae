"""What tests share: modules that are converted once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from small_models import Converted


def _same_weights() -> None:
    """Lets modules that a test makes have the same weights every time: some import seeds PyTorch from the clock."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


seeded_fixtures = pytest.fixture(scope="module", autouse=True, name="seeded_fixtures")(_same_weights)
seeded_tests = pytest.fixture(autouse=True, name="seeded_tests")(_same_weights)


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Converted]:
    """Returns a function that gives a model of small_models.MODELS with its graph."""
    done: dict[str, Converted] = {}

    def convert_once(name: str) -> Converted:
        if name not in done:
            import torch
            from small_models import MODELS, Converted

            from bisect_litert.graphs.conversion import convert

            folder = tmp_path_factory.mktemp(name)
            make, args = MODELS[name]
            torch.manual_seed(0)
            module = make().eval()
            graph = convert(module, args, {}, folder / "model.tflite", folder / "convert.log")
            done[name] = Converted(module, args, graph, folder / "model.tflite")
        return done[name]

    return convert_once


@pytest.fixture(scope="session")
def interpreter() -> Callable[[str], str]:
    """Returns a function that gives an interpreter with a version of ai-edge-litert, "" for the installed one."""

    def resolve(version: str) -> str:
        from bisect_litert.errors import RunnerError
        from bisect_litert.versions import runtimes

        if not version:
            return sys.executable
        try:
            return runtimes.resolve(version).python
        except RunnerError as error:  # no network, no room
            pytest.skip(error.message)

    return resolve
