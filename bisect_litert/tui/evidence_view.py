"""The fourth tab: why this verdict and not another, why this block and not its neighbours, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from bisect_litert.block_record import BlockResult
from bisect_litert.record import Culprit, RunRecord
from bisect_litert.records.rethreshold import allowed
from bisect_litert.reports import formats
from bisect_litert.reports.markdown import exclusions
from bisect_litert.reports.outcome import cause_words, local_on_target
from bisect_litert.tui.colours import Colours, colours_of
from bisect_litert.vocabulary import Mark


class EvidenceView(VerticalScroll):
    """Evidence and advice.

    Args:
        record: The run.
    """

    def __init__(self, record: RunRecord) -> None:
        super().__init__(id="evidence-scroll", classes="scroller")
        self._record = record

    def compose(self) -> ComposeResult:
        """One panel for the verdict, one for each culprit, one for the rest."""
        yield Static(id="evidence-verdict", classes="panel")
        yield Static(id="evidence-culprits", classes="panel")
        yield Static(id="evidence-excluded", classes="panel")
        yield Static(id="evidence-advice", classes="panel")
        yield Static(id="evidence-runs", classes="panel")

    @property
    def advice(self) -> str:
        """The rewrite to try, as it is copied."""
        texts = dict.fromkeys([*(c.advice for c in self._record.culprits if c.advice), self._record.verdict.next_step])
        return "\n\n".join(text for text in texts if text)

    def show(self, record: RunRecord, order: int) -> None:
        """Shows a record."""
        self._record = record
        colours = colours_of(self.app)
        parts: dict[str, tuple[str, RenderableType]] = {
            "verdict": ("Verdict", _verdict(record, colours)),
            "culprits": (
                "Why this block, and why so" if len(record.culprits) == 1 else "Why these blocks, in order",
                _culprits(record, colours),
            ),
            "excluded": ("Ruled out by control runs", _excluded(record, colours)),
            "advice": ("What to try  (y copies it)", Text(formats.clean(self.advice))),
            "runs": ("Runs and versions", _runs(record, colours)),
        }
        empty = {
            name
            for name, there in (
                ("culprits", record.culprits),
                ("excluded", list(exclusions(record))),
                ("advice", self.advice),
            )
            if not there
        }
        for name, (title, text) in parts.items():
            panel = self.query_one(f"#evidence-{name}", Static)
            panel.border_title = title
            panel.display = name not in empty
            panel.update(text)


def _verdict(record: RunRecord, colours: Colours) -> Text:
    verdict = record.verdict
    text = Text(formats.clean(verdict.summary))
    for note in verdict.notes:
        text.append("\nNote  ", f"bold {colours.faint}").append(formats.clean(note))
    return text


def _culprits(record: RunRecord, colours: Colours) -> Group:
    """Returns a paragraph for each culprit, its sentences behind symbols."""
    parts: list[RenderableType] = []
    for number, culprit in enumerate(record.culprits, 1):
        head = Text("\n" if number > 1 else "")
        head.append(f"✗ {formats.clean(culprit.block)}", f"bold {colours.bad}")
        head.append(f"  {cause_words(culprit.cause, culprit.kind)}", "bold")
        if culprit.hidden:
            head.append("  shows once the culprits before it are healed", colours.faint)
        parts.append(head)
        rows: list[tuple[str, str, str | Text]] = []
        if culprit.source or culprit.module:
            where = Text.assemble((formats.clean(culprit.source), colours.accent))
            where.append(f"{' in ' if culprit.source else ''}{formats.clean(culprit.module)}" if culprit.module else "")
            rows.append(("@", colours.accent, where))
        if culprit.confidence:
            word = Text.assemble((f"{culprit.confidence} confidence", f"bold {colours.accent}"))
            word.append(f": {formats.clean(culprit.confidence_reason)}" if culprit.confidence_reason else "", "")
            rows.append(("≈", colours.accent, word))
        rows += [("·", colours.faint, formats.clean(sentence)) for sentence in culprit.evidence]
        rows += [("✓", colours.good, Text("proof: " + formats.clean(s), colours.good)) for s in culprit.proof]
        rows += [("↕", colours.faint, Text(line, colours.faint)) for line in _neighbours(record, culprit)]
        if culprit.upstream:
            rows.append(("!", colours.warn, Text(f"known upstream: {formats.clean(culprit.upstream)}", colours.warn)))
        parts.append(_points(rows))
    return Group(*parts)


def _points(rows: Sequence[tuple[str, str, str | Text]]) -> Table:
    """Returns sentences behind symbols, wrapped within their own column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1, no_wrap=True)
    grid.add_column(ratio=1)
    for symbol, style, sentence in rows:
        grid.add_row(Text(symbol, style), sentence)
    return grid


def _neighbours(record: RunRecord, culprit: Culprit) -> Iterator[str]:
    """Yields why the blocks right before and after a culprit are none."""
    at = next((b.order for b in record.blocks if b.name == culprit.block), None)
    if at is None:
        return
    for step, word in ((-1, "before it"), (1, "after it")):
        near = record.blocks[at + step] if 0 <= at + step < len(record.blocks) else None
        said = _in_line(record, near) if near else ""
        if near and said:
            yield f"{formats.clean(near.name)}, {word}: {said}"


def _in_line(record: RunRecord, block: BlockResult) -> str:
    if block.mark is Mark.CULPRIT:
        return "a culprit too, see there."
    if block.mark is Mark.UNTAPPED:
        return "not tapped, so it is judged together with what follows."
    local = local_on_target(record, block)
    most = allowed(block, record.settings)
    if local is None or isnan(local.relative_l2) or isnan(most):
        return "nothing can be said of it."
    level, limit = formats.number(local.relative_l2), formats.number(most)
    if local.relative_l2 <= most and local.finite_agreement:
        return f"right at its own inputs (local error {level}, allowed {limit}, ratio {formats.number(block.ratio)})."
    return f"local error {level} where {limit} is allowed; control runs cleared it, or no output suffers."


def _excluded(record: RunRecord, colours: Colours) -> Table:
    lines = [line.replace("**", "").replace("`", "").replace("\\", "") for line in exclusions(record)]
    return _points([("✓", colours.good, formats.clean(line)) for line in lines])


def _runs(record: RunRecord, colours: Colours) -> Text:
    text = Text()
    for run in record.runs:
        bad = run.status in ("failed", "crashed", "timed out")
        text.append(f"{formats.clean(run.name):<20} ")
        text.append(f"{run.status:<10}", f"bold {colours.bad}" if bad else colours.faint)
        text.append(f"{formats.seconds(run.seconds):>9}  ", colours.faint)
        text.append(f"{formats.clean(run.detail)}\n", colours.faint)
    for refusal in record.placement.refusals:
        where = f" in {', '.join(refusal.blocks)}" if refusal.blocks else ""
        text.append("refused ", colours.warn).append(
            formats.clean(f"{refusal.op} ×{refusal.count}{where}: {refusal.reason}") + "\n"
        )
    for error in record.placement.validation_errors:
        text.append("validation error ", colours.warn).append(formats.clean(error) + "\n")
    text.append(" · ".join(f"{name} {value}" for name, value in record.environment.items()), colours.faint)
    return text
