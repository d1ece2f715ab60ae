"""The answer on a terminal: what ran, one line per block, the verdict, and where to go from here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isnan
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from bisect_litert.record import Culprit, RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.block_table import block_lines
from bisect_litert.reports.names import cut_line
from bisect_litert.reports.outcome import cause_words, headline, is_emulated, target_words, truth_name
from bisect_litert.vocabulary import Cause, Mark
from bisect_litert.wording import some_of

LABEL_WIDTH = 11


def render(
    record: RunRecord, console: Console, *, folder: Path | None = None, model: str = "", verbose: bool = False
) -> None:
    """Prints a record.

    Args:
        record: The run.
        console: Where to; its width, colours and encoding are respected.
        folder: The run folder as the user can type it; without it, files and commands that need it are left out.
        model: The model and what goes with it, as the user typed it, for commands; the record knows names only.
        verbose: Show every block and all refusals instead of folding them.
    """
    printer = _Printer(console)
    _header(record, printer, verbose)
    if record.blocks:
        printer.blank()
        title = f"Blocks against {truth_name(record)}: {target_words(record)}"
        printer.line(Text(title, "bold"))
        for line in block_lines(record, printer.width, verbose=verbose, ascii_only=printer.ascii_only):
            printer.line(line)
        _legend(record, printer)
    printer.blank()
    _verdict(record, printer)
    _whereabouts(record, printer, folder, model)


class _Printer:
    """Prints lines that never wrap and paragraphs that do, as far as the terminal's encoding goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.ascii_only = console.options.ascii_only
        self.width = console.width

    def blank(self) -> None:
        self._console.print()

    def line(self, text: Text) -> None:
        fitted = cut_line(self._fit(text), self.width, self.ascii_only)
        self._console.print(fitted, soft_wrap=True)

    def labelled(self, label: str, text: Text | str, *, bullet: str = "") -> None:
        """Prints "label   text", the text wrapped within its own column, behind the bullet if there is one."""
        body = self._fit(Text(text) if isinstance(text, str) else text)
        bullet = formats.clean(bullet, self.ascii_only)
        for index, line in enumerate(body.wrap(self._console, max(20, self.width - LABEL_WIDTH - len(bullet)))):
            line.rstrip()
            head, dot = (label, bullet) if index == 0 else ("", " " * len(bullet))
            self._console.print(Text.assemble((f"{head:<{LABEL_WIDTH}}{dot}", "dim"), line), soft_wrap=True)

    def explained(self, symbol: str, text: str) -> None:
        """Prints "✓ what the symbol means", wrapped behind it."""
        head = formats.clean(f"{symbol} ", self.ascii_only)
        body = self._fit(Text(text))
        for index, line in enumerate(body.wrap(self._console, max(20, self.width - len(head)))):
            line.rstrip()
            self._console.print(Text((head if index == 0 else " " * len(head)) + line.plain, "dim"), soft_wrap=True)

    def packed(self, label: str, items: Iterable[str]) -> None:
        """Prints items with dots between them, breaking lines only between items."""
        rows: list[str] = []
        for item in items:
            joined = f"{rows[-1]} · {item}" if rows else item
            if rows and cell_len(joined) <= self.width - LABEL_WIDTH:
                rows[-1] = joined
            else:
                rows.append(item)
        for index, row in enumerate(rows):
            self.labelled(label if index == 0 else "", row)

    def unwrapped(self, label: str, text: str) -> None:
        """Prints a command or a path whole, however long, so that it can be copied."""
        row = Text.assemble((f"{label:<{LABEL_WIDTH}}", "dim"), text)
        self._console.print(self._fit(row), soft_wrap=True)

    def _fit(self, text: Text) -> Text:
        fitted = Text(style=text.style, end=text.end)
        # Piece by piece, because the ASCII form of a symbol may be longer and would shift the styles after it.
        for piece in text.divide(sorted({0, *(s.start for s in text.spans), *(s.end for s in text.spans)} - {0})):
            style = piece.spans[0].style if piece.spans else ""
            fitted.append(formats.clean(piece.plain, self.ascii_only), style)
        return fitted


def _header(record: RunRecord, printer: _Printer, verbose: bool) -> None:
    beside = f" as {record.settings.tflite}" if record.settings.tflite else ""
    title = Text.assemble(("bisect-litert", "bold"), "  ", record.model + beside)
    if is_emulated(record):
        title.append(f"  ({record.target})", "bold yellow")
    printer.line(title)
    printer.blank()
    inputs = [formats.input_line(info) for info in record.inputs]
    for index, line in enumerate(inputs if verbose else inputs[:4]):
        printer.labelled("inputs" if index == 0 else "", line)
    if len(inputs) > 4 and not verbose:
        printer.labelled("", f"… {len(inputs) - 4} more")
    printer.packed("versions", (f"{name} {value}" for name, value in record.environment.items()))
    placement = record.placement
    printer.labelled("adapter", placement.adapter or "none")
    if placement.line:
        printer.labelled("placement", placement.line)
    for refusal in placement.refusals if verbose else placement.refusals[:3]:
        blocks = refusal.blocks
        where = f" in {some_of(blocks, len(blocks) if verbose else 6)}" if blocks else ""
        printer.labelled("", f"refused: {refusal.op} ×{refusal.count}{where}: {refusal.reason}")
    if len(placement.refusals) > 3 and not verbose:
        printer.labelled("", f"… {len(placement.refusals) - 3} more refused op types (-v shows them)")
    for error in placement.validation_errors[:3]:
        printer.labelled("", f"validation error: {error}")


def _legend(record: RunRecord, printer: _Printer) -> None:
    marks = {block.mark for block in record.blocks}
    words = {
        Mark.AFTER: "after: in line by itself, wrong because of a culprit before it",
        Mark.NOTE: "note: out of line, but no model output suffers",
        Mark.UNTAPPED: "untapped: its output is no tensor of the graph, or cannot be one of its outputs",
        Mark.UNKNOWN: "unknown: not measured, or only at inputs that were wrong, non-finite or missing",
    }
    for mark, text in words.items():
        if mark in marks:
            printer.explained(formats.SYMBOLS[mark], text)


def _verdict(record: RunRecord, printer: _Printer) -> None:
    verdict = record.verdict
    style = "bold red" if verdict.diverged else ("bold green" if verdict.cause.value == "none" else "bold yellow")
    cause = cause_words(verdict.cause)
    rest = headline(record)[len(cause) :]
    title = Text.assemble((cause.upper(), style), (rest, "bold"))
    if is_emulated(record):
        title.append(f"  ({record.target})", "bold yellow")
    printer.labelled("Verdict", title)
    printer.labelled("", verdict.summary)
    classes = {block.name: block.class_name for block in record.blocks}
    for number, culprit in enumerate(record.culprits, 1):
        printer.blank()
        what = f"  {classes.get(culprit.block, '')}".rstrip() + f"  {cause_words(culprit.cause, culprit.kind)}"
        name = Text.assemble((culprit.block, "bold"), what)
        if culprit.hidden:
            name.append("  (shows once the culprits before it are healed)", "dim")
        printer.labelled(f"Culprit {number}" if len(record.culprits) > 1 else "Culprit", name)
        place = _place(culprit)
        if place:
            printer.labelled("", place)
        for row in culprit.code.splitlines():
            printer.line(Text(" " * LABEL_WIDTH + row, "" if row.startswith(">") else "dim"))
        for sentence in (*culprit.evidence, *culprit.proof):
            if sentence not in verdict.summary:
                printer.labelled("", sentence, bullet="· ")
        if culprit.confidence:
            printer.labelled("", f"Confidence {culprit.confidence}: {culprit.confidence_reason}", bullet="· ")
        if culprit.upstream:
            printer.labelled("", f"Known upstream: {culprit.upstream}", bullet="· ")
        if culprit.advice and culprit.advice != verdict.next_step:
            printer.labelled("", culprit.advice, bullet="→ ")
    if verdict.notes:
        printer.blank()
    for index, note in enumerate(verdict.notes):
        printer.labelled(("Notes" if len(verdict.notes) > 1 else "Note") if index == 0 else "", note)
    if verdict.next_step:
        printer.blank()
        printer.labelled("Next", Text(verdict.next_step, "bold"))


def _place(culprit: Culprit) -> str:
    """The op, the module that owns it, and the line: "SQUARED_DIFFERENCE (op 192) in blocks.3.norm, model.py:41"."""
    op = next((o for o in culprit.ops if o.index == culprit.op), None)
    first = f"{op.type} (op {op.index})" if op else culprit.operator
    if len(set(culprit.region)) > 1:
        first = f"ops {culprit.region[0]} to {culprit.region[-1]} together"
    where = f" in {culprit.module}" if culprit.module else ""
    return ", ".join(part for part in (f"{first}{where}".strip(), culprit.source) if part)


def _whereabouts(record: RunRecord, printer: _Printer, folder: Path | None, model: str) -> None:
    printer.blank()
    if folder is not None:
        folders = [f"{name}/" for name in ("tensors", "repro", "logs") if (folder / name).is_dir()]
        files = ["run.json", *record.files.values(), *folders]
        printer.unwrapped("Files", f"{folder}/")
        printer.packed("", dict.fromkeys(files))
    for index, command in enumerate(_commands(record, folder, model)):
        printer.unwrapped("Commands" if index == 0 else "", command)
    # Runs that were not needed are no news, failed ones are.
    trouble = [run for run in record.runs if run.status in ("failed", "crashed", "timed out")]
    for index, run in enumerate(trouble):
        where = f" ({run.log})" if run.log else ""
        printer.labelled(
            "Trouble" if index == 0 else "", f"run {run.name} {run.status}{where}: {run.detail}".rstrip(": ")
        )
    if not isnan(record.seconds):
        printer.labelled("Took", formats.seconds(record.seconds))


def _commands(record: RunRecord, folder: Path | None, model: str) -> Iterator[str]:
    if folder is None and not model:
        return  # a session of Python, which knows the model by no file
    model = model or formats.quote(record.model)
    inside = formats.look_inside(record, model)
    if inside:
        yield inside
    elif record.verdict.cause is Cause.NONE and not record.settings.inputs:
        yield f"bisect-litert {model} --inputs yours.npz"
    if folder is not None:
        yield f"bisect-litert view {formats.quote(str(folder))}"
        yield f"bisect-litert report {formats.quote(str(folder))}"
