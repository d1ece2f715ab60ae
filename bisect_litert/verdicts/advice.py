"""What to write instead: the rewrite, and the known upstream issue, that fit a culprit, or an operation that the GPU
refuses or that does not convert.

The knowledge is data/advice.json, a list of entries; docs/advice.md shows it as tables and is written by
`python -m bisect_litert.verdicts.advice > docs/advice.md`. Each entry carries an example, a query that has to come back
with that entry, so an entry that a more specific one hides is found by a test.

An entry answers a query when all that it asks for holds: what it leaves empty always holds, what the query leaves
unknown never does. Of several entries the most specific answers. Compared in this order, the first difference decides:

1. it names the kind, which is part of the cause ("underflow" wants the opposite of what "overflow" wants);
2. it names a module class, which tells what is being computed where an op only tells how;
3. it names an op;
4. it has more conditions (ranks, sizes, constant operand, reason);
5. it stands earlier in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from bisect_litert.vocabulary import Cause


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a culprit or of a refused op; empty and None mean unknown."""

    cause: str
    """A `Cause`, by its value."""
    kind: str = ""
    op: str = ""
    """TensorFlow Lite's name, "SQUARED_DIFFERENCE", or PyTorch's, "aten.upsample_nearest2d.vec"."""
    module_class: str = ""
    """Class of the deepest module that owns the op, "LayerNorm"."""
    rank: int | None = None
    """Of the op's result."""
    constant_operand: bool | None = None
    """Whether one of the op's operands is a constant of the file."""
    constant_rows: bool | None = None
    """Whether the outermost axis of such a constant is longer than 1."""
    mixed_ranks: bool | None = None
    """Whether the op's operands differ in rank."""
    longest: int | None = None
    """Longest axis of the op's operands and result."""
    reason: str = ""
    """The delegate's or the converter's own words."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of advice, and where it applies."""

    id: str
    causes: tuple[str, ...]
    rewrite: str
    """What to do, one to three sentences."""
    example: Query
    """A query that this entry, and no other, answers."""
    kinds: tuple[str, ...] = ()
    """Empty for any, like the next two."""
    ops: tuple[str, ...] = ()
    """Globs, case-sensitive."""
    modules: tuple[str, ...] = ()
    """Globs on the class name, case-sensitive."""
    min_rank: int | None = None
    max_rank: int | None = None
    constant_operand: bool | None = None
    constant_rows: bool | None = None
    mixed_ranks: bool | None = None
    min_longest: int | None = None
    refused_reason: str = ""
    """Regular expression, searched for in the reason."""
    ready_made: str = ""
    """Where code that does it can be found."""
    upstream: str = ""
    """"google-ai-edge/LiteRT#8593"; empty when no issue is known."""
    seen: str = ""
    """Versions and platforms in which it was seen, in words."""

    @property
    def text(self) -> str:
        """The rewrite, and where its code can be found."""
        return f"{self.rewrite} Ready-made: {self.ready_made}." if self.ready_made else self.rewrite

    @property
    def reference(self) -> str:
        """The upstream issue with the versions it was seen in; empty when no issue is known."""
        return f"{self.upstream} (seen in {self.seen})" if self.upstream else ""

    @property
    def is_default(self) -> bool:
        """Whether it asks for nothing but the cause."""
        return self.specificity == (False, False, False, 0)

    @property
    def specificity(self) -> tuple[bool, bool, bool, int]:
        """Larger is more specific."""
        conditions = (
            self.min_rank,
            self.max_rank,
            self.constant_operand,
            self.constant_rows,
            self.mixed_ranks,
            self.min_longest,
        )
        count = sum(c is not None for c in conditions) + bool(self.refused_reason)
        return bool(self.kinds), bool(self.modules), bool(self.ops), count

    def answers(self, query: Query) -> bool:
        """Whether all that the entry asks for holds."""
        rank = query.rank
        return (
            query.cause in self.causes
            and (not self.kinds or query.kind in self.kinds)
            and _one_of(self.ops, query.op)
            and _one_of(self.modules, query.module_class)
            and (self.min_rank is None or (rank is not None and rank >= self.min_rank))
            and (self.max_rank is None or (rank is not None and rank <= self.max_rank))
            and (self.constant_operand is None or query.constant_operand == self.constant_operand)
            and (self.constant_rows is None or query.constant_rows == self.constant_rows)
            and (self.mixed_ranks is None or query.mixed_ranks == self.mixed_ranks)
            and (self.min_longest is None or (query.longest is not None and query.longest >= self.min_longest))
            and (not self.refused_reason or re.search(self.refused_reason, query.reason) is not None)
        )


def _one_of(globs: Sequence[str], name: str) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


@cache
def entries() -> tuple[Entry, ...]:
    """Returns the knowledge, in the file's order."""
    from cattrs import Converter

    text = files("bisect_litert").joinpath("data/advice.json").read_text(encoding="utf-8")
    # A misspelt key would be an entry that asks for less than its author meant.
    found: tuple[Entry, ...] = Converter(forbid_extra_keys=True).structure(json.loads(text), tuple[Entry, ...])
    return found


def ask(query: Query) -> Entry | None:
    """Returns the most specific entry that answers, or None when the cause has none."""
    return max((entry for entry in entries() if entry.answers(query)), key=lambda e: e.specificity, default=None)


def default(cause: Cause, kind: str = "") -> str:
    """Returns what to try for a cause of which nothing else is known; empty where nothing is wrong."""
    entry = ask(Query(cause.value, kind))
    return entry.text if entry else ""


def for_refusal(op: str, reason: str) -> Entry | None:
    """Finds the advice for an op type that the GPU delegate refused, from its own words."""
    return ask(Query(Cause.REJECTED.value, op=op, reason=reason))


def for_conversion_error(message: str) -> Entry | None:
    """Finds the advice for a message of the converter's, which left nothing to test."""
    return ask(Query(Cause.CANNOT_TEST.value, reason=message))


def way_around(said: str) -> str:
    """Returns what to write instead of an operation that does not convert; empty when nothing is known.

    Args:
        said: Its name, or what the converter or the runtime says of it.
    """
    entry = for_conversion_error(said)
    return entry.text if entry is not None and not entry.is_default else ""


def markdown() -> str:
    """Returns docs/advice.md."""
    lines = [
        "# Advice",
        "",
        "What bisect-litert says to try, by cause: it prints the most specific row that fits, the last row of a table",
        "where none does. Written from `bisect_litert/data/advice.json`; to add a row, add an entry with an `example`",
        "there and run `python -m bisect_litert.verdicts.advice > docs/advice.md`.",
        "",
        "Platforms: WebGPU is LiteRT's accelerator on Linux (Vulkan), Metal on macOS and iOS, OpenCL on Android.",
    ]
    for cause in Cause:
        rows = sorted((e for e in entries() if cause.value in e.causes), key=lambda e: e.is_default)
        if rows:
            lines += ["", f"## {cause}", "", "| where | try | known as |", "| --- | --- | --- |"]
            lines += [f"| {_where(e)} | {_cell(e.text)} | {_cell(e.reference or e.seen)} |" for e in rows]
    return "\n".join(lines) + "\n"


def _where(entry: Entry) -> str:
    ranks = {
        (False, False): "",
        (True, False): f"rank {entry.min_rank} or more",
        (False, True): f"rank {entry.max_rank} or less",
        (True, True): f"rank {entry.min_rank}" + (f" to {entry.max_rank}" if entry.min_rank != entry.max_rank else ""),
    }
    constant = {None: "", True: "a constant operand", False: "no constant operand"}
    said = [
        *entry.kinds,
        ", ".join(f"`{op}`" for op in entry.ops),
        f"in {', '.join(f'`{m}`' for m in entry.modules)}" if entry.modules else "",
        ranks[entry.min_rank is not None, entry.max_rank is not None],
        constant[entry.constant_operand],
        {None: "", True: "of several rows", False: "of one row"}[entry.constant_rows],
        {None: "", True: "operands of different ranks", False: "operands of one rank"}[entry.mixed_ranks],
        f"an axis of {entry.min_longest} or more" if entry.min_longest is not None else "",
        f"message has `{entry.refused_reason}`" if entry.refused_reason else "",
    ]
    return _cell("; ".join(part for part in said if part) or "anything else")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
