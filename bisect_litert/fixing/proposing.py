"""Which rewrites may cure a culprit, where in the model, and which other culprits the same one is for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from bisect_litert.fixing.faults import faults_of, key_of, region_paths, within
from bisect_litert.fixing.parts import Case, Part
from bisect_litert.models.preparation import LoadedModel
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.records.fix_record import Attempt, Reached
from bisect_litert.vocabulary import Cause

if TYPE_CHECKING:
    from bisect_litert.rewrites.region import Region


def candidates(model: LoadedModel, case: Case, seed: int) -> Iterator[Part]:
    """Returns the replacements for a culprit, the likeliest first; what does not fit is noted in the case."""
    from bisect_litert.rewrites.catalogue import fitting
    from bisect_litert.rewrites.contract import CannotRewrite

    paths = region_paths(model.module, case.culprit)
    regions = _regions(model, case.culprit, paths, seed)
    for path in paths:
        for rewrite in fitting(case.culprit.cause):
            try:
                for replacement in rewrite.propose(regions[path]):
                    yield Part(case, regions[path], rewrite, replacement)
            except CannotRewrite as error:
                attempt = Attempt(rewrite.name, rewrite.title, path or "(model)", Reached.NO_FIT, str(error))
                case.attempts.append(attempt)


def peers(model: LoadedModel, part: Part, last: RunRecord, known: Container[tuple[str, ...]], seed: int) -> list[Part]:
    """Returns the same rewrite for the other culprits of the same cause whose module at that place is of the same
    class.

    Args:
        model: The model as it is.
        part: The rewrite of one.
        last: The model's bisection.
        known: Keys of the culprits that were gone into before.
        seed: Of the forward that shows how the modules are called.
    """
    from bisect_litert.rewrites.contract import CannotRewrite

    culprit, path = part.case.culprit, part.region.path
    block = culprit.block.split("@")[0]
    if not within(path, block):
        return []
    modules = dict(model.module.named_modules())
    found: list[Part] = []
    for other in faults_of(last):
        place = other.block.split("@")[0] + path[len(block) :]
        alike = (other.cause, other.kind) == (culprit.cause, culprit.kind) and key_of(other) not in known
        if not alike or type(modules.get(place)) is not type(part.region.module):
            continue
        if place == path or any(p.region.path == place for p in found):
            continue
        region = _regions(model, other, [place], seed)[place]
        try:
            proposals = part.rewrite.propose(region)
            wanted = next((r for r in proposals if r.title == part.replacement.title), None)
        except CannotRewrite:
            continue
        if wanted is not None:
            found.append(Part(Case(other, False, last), region, part.rewrite, wanted))
    return found


def _regions(model: LoadedModel, culprit: Culprit, paths: Sequence[str], seed: int) -> dict[str, Region]:
    from bisect_litert.rewrites.region import Region, capture

    calls = capture(model.module, model.args, model.kwargs, paths, seed)
    refused = (culprit.kind,) if culprit.cause is Cause.REJECTED else ()
    guilty = tuple(op.type for op in culprit.ops if op.index == culprit.op or op.index in culprit.region)
    return {
        path: Region(
            path=path,
            module=model.module.get_submodule(path),
            calls=calls[path],
            cause=culprit.cause,
            kind=culprit.kind,
            lines=(culprit.source,) if culprit.source else (),
            ops=guilty or refused,
        )
        for path in paths
    }
