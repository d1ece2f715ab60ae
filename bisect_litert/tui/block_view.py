"""The second tab: one block's tensors, torch against the target."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Static
from textual.worker import get_current_worker

from bisect_litert.block_record import BlockResult, TapInfo
from bisect_litert.record import RunRecord
from bisect_litert.records.rethreshold import allowed
from bisect_litert.reports import formats
from bisect_litert.reports.outcome import cause_words, target_run, truth_name
from bisect_litert.tui import tensor_pictures as pictures
from bisect_litert.tui.colours import Colours, colours_of
from bisect_litert.tui.stepped import Stepped
from bisect_litert.tui.tensor_facts import PairFacts, read_facts
from bisect_litert.tui.tensor_pair import TensorError, TensorPair
from bisect_litert.vocabulary import TapOrigin

PANELS = {
    "numbers": "Every run at this block (stored)",
    "statistics": "Statistics",
    "patterns": "Not finite, or zero",
    "histogram": "Magnitudes",
    "axes": "Where the error sits",
    "heat": "Worst slice",
    "worst": "Worst elements",
}
NARROWEST = 30


class BlockView(Vertical):
    """One block.

    Args:
        record: The run.
        folder: Its folder, None when there is none to read tensors from.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n,right", "step(1)", "Next", key_display="n"),
        Binding("p,N,left", "step(-1)", "Previous", key_display="p"),
        Binding("v", "next_tap", "Tensor"),
    ]

    class Read(Message):
        """A tensor was read, or could not be."""

        def __init__(self, key: tuple[int, int], facts: PairFacts | None, trouble: str, share: float = 1.0) -> None:
            super().__init__()
            self.key = key
            self.facts = facts
            self.trouble = trouble
            self.share = share

    def __init__(self, record: RunRecord, folder: Path | None) -> None:
        super().__init__()
        self._record, self._folder = record, folder
        self._order = self._tap = 0
        self._facts: PairFacts | None = None
        self._shown: tuple[int, int] | None = None

    def compose(self) -> ComposeResult:
        """Lays out the panels."""
        yield Static(id="block-headline", classes="headline")
        with VerticalScroll(id="block-scroll", classes="scroller"), Horizontal(classes="columns"):
            with Vertical():
                for name in ("patterns", "statistics", "worst", "numbers"):
                    yield self._panel(name)
            with Vertical():
                for name in ("histogram", "axes", "heat"):
                    yield self._panel(name)

    @staticmethod
    def _panel(name: str) -> Static:
        panel = Static(id=f"panel-{name}", classes="panel")
        panel.border_title = PANELS[name]
        return panel

    def show(self, record: RunRecord, order: int) -> None:
        """Shows a block of a record."""
        if order != self._order:
            self._tap = 0
        self._record, self._order = record, order
        if record.blocks:
            self._load()

    @property
    def command(self) -> str:
        """The command that keeps this block's tensors, "" where there is nothing to keep or they are there."""
        tap = self._tap_info() if self._record.blocks else None
        there = tap is None or tap.origin not in (TapOrigin.GRAPH, TapOrigin.REEXPORT) or tap.reference_file
        return "" if there else _again(self._record, self._block)

    @property
    def _block(self) -> BlockResult:
        return self._record.blocks[self._order]

    def action_step(self, by: int) -> None:
        """Goes to the next or the previous block."""
        order = self._order + by
        if 0 <= order < len(self._record.blocks):
            self.post_message(Stepped(order))

    def action_next_tap(self) -> None:
        """Goes to the next tensor of the block's output."""
        if self._record.blocks and len(self._block.taps) > 1:
            self._tap = (self._tap + 1) % len(self._block.taps)
            self._load()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        key, tap = (self._order, self._tap), self._tap_info()
        self._write_headline()
        self._write("numbers", lambda c: pictures.all_runs(_runs(self._block), c))
        if key == self._shown and self._facts is not None:
            self._draw()
            return
        self._facts, self._shown = None, key
        why = _not_kept(self._record, self._block, tap, self._folder)
        if why:
            self._explain(why)
            return
        self._explain("Reading …")
        assert tap is not None
        self._read(key, tap)

    def _tap_info(self) -> TapInfo | None:
        taps = self._block.taps
        return taps[self._tap] if taps else None

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _read(self, key: tuple[int, int], tap: TapInfo) -> None:
        worker = get_current_worker()
        told = [0.0]

        def progress(share: float) -> None:
            if share - told[0] > 0.05 and not worker.is_cancelled:
                told[0] = share
                self.post_message(self.Read(key, None, "", share))

        try:
            assert self._folder is not None
            pair = TensorPair(self._folder, tap.reference_file, tap.target_file)
            facts = read_facts(pair, progress, lambda: worker.is_cancelled, truth=truth_name(self._record))
            trouble = ""
        except TensorError as error:
            facts, trouble = None, str(error)
        except (OSError, ValueError, MemoryError) as error:
            facts, trouble = None, f"The tensor could not be read: {type(error).__name__}: {error}."
        if not worker.is_cancelled:
            self.post_message(self.Read(key, facts, trouble))

    def on_block_view_read(self, event: BlockView.Read) -> None:
        """Draws what was read."""
        event.stop()
        if event.key != self._shown:
            return
        if event.trouble:
            self._explain(event.trouble, bad=True)
        elif event.facts is None:
            self._explain(f"Reading … {event.share:.0%}")
        else:
            self._facts = event.facts
            self._draw()

    # -- drawing -------------------------------------------------------------------------------------------------------

    def on_resize(self) -> None:
        """Draws for the new width."""
        if self._facts is not None:
            self.call_after_refresh(self._draw)

    def _explain(self, why: str, bad: bool = False) -> None:
        """Puts a sentence in place of the tensor's panels."""
        colours = colours_of(self.app)
        for name in PANELS:
            if name != "numbers":
                self.query_one(f"#panel-{name}").display = name == "statistics"
        panel = self.query_one("#panel-statistics", Static)
        panel.border_title = "Tensor"
        panel.update(Text(formats.clean(why), colours.bad if bad else ""))

    def _draw(self) -> None:
        facts = self._facts
        if facts is None:
            return
        for name, title in PANELS.items():
            panel = self.query_one(f"#panel-{name}")
            panel.display = True
            panel.border_title = title
        tall = self.app.size.height >= 32
        self._write("statistics", lambda c: pictures.statistics(facts, c))
        self._write("patterns", lambda c: pictures.patterns(facts, c))
        self._write("worst", lambda c: pictures.worst_elements(facts, 12 if tall else 8, c))
        self._write("histogram", lambda c: pictures.histogram(facts, self._width, 5 if tall else 3, c))
        self._write("axes", lambda c: pictures.along_axes(facts, self._width, c))
        self._write("heat", lambda c: pictures.heat_map(facts.heat, facts, c, self._width))

    @property
    def _width(self) -> int:
        whole = max(NARROWEST, self.size.width - 4)
        wide = self.app.size.width >= 110
        return max(NARROWEST, min(100, whole // 2 - 4 if wide else whole - 4))

    def _write(self, name: str, draw: Callable[[Colours], Text]) -> None:
        panel = self.query_one(f"#panel-{name}", Static)
        try:
            panel.update(draw(colours_of(self.app)))
        # Whatever a strange tensor does to one picture, it costs that picture and not the application.
        except Exception as error:
            panel.update(Text(f"This could not be drawn: {type(error).__name__}: {error}."))

    def _write_headline(self) -> None:
        block, tap, colours = self._block, self._tap_info(), colours_of(self.app)
        text = Text()
        text.append(f"{formats.SYMBOLS[block.mark]} {formats.clean(block.name)}", f"bold {colours.of(block.mark)}")
        text.append(f"  {formats.clean(block.class_name)}  {block.mark.value}")
        if block.cause.value != "none":
            text.append(f": {cause_words(block.cause)}", colours.bad)
        text.append(f"   block {self._order + 1} of {len(self._record.blocks)}", colours.faint)
        if tap is not None:
            label = f" output{tap.label}" if tap.label else ""
            text.append(f"\n{formats.shape(tap.shape)} {tap.dtype}{formats.clean(label)}")
            if len(block.taps) > 1:
                text.append(f"  tensor {self._tap + 1} of {len(block.taps)} (v: next)", colours.faint)
        most = allowed(block, self._record.settings)
        ratio = "-" if isnan(block.ratio) else formats.number(block.ratio)
        text.append(f"   ratio {ratio}", "")
        if not isnan(most):
            text.append(f", local error allowed {formats.number(most)}", colours.faint)
        text.append(f"   {formats.plural(block.ops, 'op')} on {block.residency.value}", colours.faint)
        self.query_one("#block-headline", Static).update(text)


def _runs(block: BlockResult) -> list[tuple[str, str, str, str, str, str]]:
    rows = []
    for run, errors in block.errors.items():
        total, local = errors.cumulative, errors.local
        rows.append(
            (
                run.value,
                formats.number(total.relative_l2) if total else "-",
                formats.number(local.relative_l2) if local else "-",
                formats.correlation(total.correlation) if total else "-",
                formats.count(total.nonfinite) if total else "-",
                formats.share_of_zeros(total) if total else "-",
            )
        )
    return rows


def _again(record: RunRecord, block: BlockResult) -> str:
    return f"bisect-litert {formats.quote(record.model)} --blocks {formats.glob(block.module or '**')}"


def _not_kept(record: RunRecord, block: BlockResult, tap: TapInfo | None, folder: Path | None) -> str:
    """Returns why there is no tensor to read and how to get one, "" where there is."""
    if tap is None or tap.origin is TapOrigin.NONE:
        return (
            "This block's output is no tensor of the converted graph, so it could not be tapped; only what follows it "
            "is judged."
        )
    if tap.origin in (TapOrigin.INPUT, TapOrigin.CONSTANT):
        what = "a graph input" if tap.origin is TapOrigin.INPUT else "a constant"
        return f"This block hands on {what}: there is nothing to compute, and so nothing to compare."
    if tap.reference_file and tap.target_file and folder is not None:
        return ""
    if not tap.reference_file or not tap.target_file:
        return (
            "The tensors of this block were not kept: a run keeps those of culprits and their neighbours, of "
            f"{truth_name(record)} and {target_run(record).value}. The numbers below are all there is. To keep this "
            f"block's, make it the only one (y copies this):\n\n{_again(record, block)}"
        )
    return "The run folder is not known, so its tensors cannot be read."
