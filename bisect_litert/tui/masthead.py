"""The two lines that stay on top: the verdict, and where it ran."""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text
from textual.widgets import Static

from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import cause_words, headline, is_emulated
from bisect_litert.tui.colours import colours_of
from bisect_litert.vocabulary import PYTORCH


class Masthead(Static):
    """Verdict with confidence, the model, the adapter and the placement.

    Args:
        record: The run.
    """

    def __init__(self, record: RunRecord, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._record = record
        self._changed: tuple[str, ...] = ()

    def show(self, record: RunRecord, changed: tuple[str, ...] = ()) -> None:
        """Shows a record, judged with the changed tolerances, if any."""
        self._record, self._changed = record, changed
        self.refresh()

    def render(self) -> Text:
        """Returns both lines."""
        record, colours = self._record, colours_of(self.app)
        width = self.content_region.width or 80
        verdict = record.verdict
        style = colours.bad if verdict.diverged else (colours.good if verdict.cause.value == "none" else colours.warn)
        symbol = "✗" if verdict.diverged else ("✓" if verdict.cause.value == "none" else "!")
        cause = cause_words(verdict.cause)
        first = Text.assemble((f"{symbol} {cause.upper()}", f"bold {style}"), (headline(record)[len(cause) :], "bold"))
        confidence = record.culprits[0].confidence if record.culprits else ""
        if confidence:
            first.append(f"  {confidence} confidence", colours.faint)
        if self._changed:
            first.append(f"  recomputed: {', '.join(c.partition(' (')[0] for c in self._changed)}", colours.warn)
        return Text("\n").join(
            [
                _sides(_clean(first), Text(formats.clean(record.model), colours.faint), width),
                _sides(self._where(colours.warn, colours.faint), self._against(colours.faint), width),
            ]
        )

    def _against(self, faint: str) -> Text:
        name = self._record.reference
        return Text("" if name == PYTORCH else f"against {name}", faint)

    def _where(self, warn: str, faint: str) -> Text:
        record = self._record
        text = Text(style=faint)
        if is_emulated(record):
            text.append(record.target, f"bold {warn}")
        else:
            text.append(f"GPU {formats.device(record) if record.placement.adapter else 'unknown adapter'}")
        if record.placement.line:
            text.append(f" · {record.placement.line}")
        if record.placement.refusals:
            text.append(f" · {formats.plural(len(record.placement.refusals), 'op type')} refused", warn)
        return _clean(text)


def _clean(text: Text) -> Text:
    """Returns `text` without control codes; those are one character before and after, so styles stay in place."""
    plain = formats.clean(text.plain).replace("\n", " ")
    return Text(plain, style=text.style, spans=text.spans)


def _sides(left: Text, right: Text, width: int) -> Text:
    """Returns a line with one text on each side, the right one dropped where both do not fit."""
    room = width - left.cell_len - cell_len(right.plain)
    line = left.copy()
    if right.plain and room >= 2:
        line.append(" " * room).append_text(right)
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line
