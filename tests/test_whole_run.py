"""Every tensor of a graph, in one run or in stretches: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import Converted

from bisect_litert.devices.runners import Runner
from bisect_litert.subjects.whole_run import run_whole


@pytest.mark.parametrize("name", ["blocks", "convolutions", "masked"])
def test_stretches_give_what_one_run_gives(name: str, converted: Callable[[str], Converted], tmp_path: Path) -> None:
    model = converted(name)
    with Runner(tmp_path) as runner:
        whole, _ = run_whole(runner, model.graph, model.inputs, tmp_path, "whole")
        parted, last = run_whole(runner, model.graph, model.inputs, tmp_path, "parted", budget=1)
    assert last.id == f"parted-{len(model.graph.ops)}"  # an op each: none of them fits
    computed = {t for op in model.graph.ops for t in op.outputs}
    assert computed <= parted.keys()
    for t in computed:
        np.testing.assert_array_equal(parted[t], whole[t])
