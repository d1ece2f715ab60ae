"""Every tensor of a graph, in one run or in stretches: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_models import Converted

from bisect_litert.devices.jobs import Job, JobResult
from bisect_litert.devices.runners import Runner
from bisect_litert.errors import ConversionError
from bisect_litert.subjects.whole_run import Stretched, run_whole


@pytest.mark.parametrize("name", ["blocks", "convolutions", "masked"])
def test_stretches_give_what_one_run_gives(name: str, converted: Callable[[str], Converted], tmp_path: Path) -> None:
    model = converted(name)
    with Runner(tmp_path) as runner:
        whole, _ = run_whole(runner, model.graph, model.inputs, tmp_path, "whole")
        parted, last = run_whole(runner, model.graph, model.inputs, tmp_path, "parted", budget=1)
        assert last.id == f"parted-{len(model.graph.ops)}"  # an op each: none of them fits
        computed = sorted(t for op in model.graph.ops for t in op.outputs)
        assert parted.keys() == whole.keys()
        for t in computed:
            assert parted.look(t).print == whole.look(t).print
        # None of these was kept, so they are computed again, with what comes before them.
        for t in (computed[len(computed) // 2], computed[1], computed[-1]):
            np.testing.assert_array_equal(parted[t], whole[t])
    assert isinstance(parted, Stretched)
    with Runner(tmp_path / "elsewhere") as runner:
        parted.move_to(runner, tmp_path)
        np.testing.assert_array_equal(parted[computed[2]], whole[computed[2]])


class Refuses:
    """A runtime that cannot prepare an op."""

    def __init__(self, says: str) -> None:
        self.says = says

    def run(self, jobs: list[Job]) -> dict[str, JobResult]:
        return {job.id: JobResult(job.id, "failed", self.says) for job in jobs}


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (
            "Only Add is supported for stablehlo.scatter.Node number 10 (STABLEHLO_SCATTER) failed to prepare.",
            "holds STABLEHLO_SCATTER, which LiteRT's runtime does not run as it is: Only Add is supported for "
            "stablehlo.scatter.",
        ),
        (
            "Didn't find op for builtin opcode 'STABLEHLO_SORT' version '1'.",
            "which LiteRT's runtime has no kernel for.",
        ),
    ],
)
def test_an_op_that_the_runtime_refuses_is_named_with_a_way_around(
    says: str, sentence: str, converted: Callable[[str], Converted], tmp_path: Path
) -> None:
    model = converted("blocks")
    with pytest.raises(ConversionError) as error:
        run_whole(Refuses(says), model.graph, model.inputs, tmp_path, "whole")
    assert sentence in error.value.message
    assert "become" in error.value.hint
