"""One run: the masthead, the tabs, and the keys that work in all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, TabbedContent, TabPane

from bisect_litert.errors import BisectError
from bisect_litert.record import RunRecord, Settings
from bisect_litert.records.rethreshold import differences, recompute
from bisect_litert.tui import terminal
from bisect_litert.tui.block_table import BlockTable
from bisect_litert.tui.compare_view import CompareView
from bisect_litert.tui.divergence_plot import DivergencePlot
from bisect_litert.tui.evidence_view import EvidenceView
from bisect_litert.tui.masthead import Masthead
from bisect_litert.tui.ops_view import OpsView
from bisect_litert.tui.overview import Overview
from bisect_litert.tui.stepped import Stepped
from bisect_litert.tui.tolerances_view import TolerancesView

TABS = ("overview", "block", "ops", "evidence", "compare", "tolerances")


class RunScreen(Screen[None]):
    """The screen of a run.

    Args:
        record: The run.
        folder: Its folder; without it there are no tensors to look at.
        other: An earlier run to compare with; the compare tab is opened then.
        other_folder: That one's folder.
    """

    AUTO_FOCUS = ""
    """Nothing by itself: each tab says what its keys go to, and the footer is made anew each time they change."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "tab(0)", "Tabs", key_display="1-6"),
        *[Binding(str(i + 1), f"tab({i})", tab.title(), show=False) for i, tab in enumerate(TABS) if i],
        Binding("y", "copy", "Copy"),
        Binding("Y", "copy_summary", "Copy summary", show=False),
        Binding("s", "save", "Save"),
        Binding("slash", "filter", "Filter", show=False),
        Binding("o", "folder", "Files"),
        Binding("escape", "back", "Back", show=False),
        Binding("ctrl+p", "app.command_palette", "Palette", show=False),
    ]

    def __init__(
        self, record: RunRecord, folder: Path | None, other: RunRecord | None = None, other_folder: Path | None = None
    ) -> None:
        super().__init__()
        self.original = record
        """As the run left it."""
        self.record = record
        """As judged with the tolerances of the moment."""
        self.folder = folder
        self._other, self._other_folder = other, other_folder
        first = record.culprits[0].block if record.culprits else ""
        self.selected = next((b.order for b in record.blocks if b.name == first), 0)

    def compose(self) -> ComposeResult:
        """Lays out the masthead, the tabs and the footer."""
        yield Masthead(self.record)
        first = "compare" if self._other else "overview"
        with TabbedContent(initial=first):
            for number, tab in enumerate(TABS, 1):
                with TabPane(f"{number} {tab.title()}", id=tab):
                    # The others are made when they are gone to: the first screen would wait for their styles.
                    if tab in ("overview", first):
                        yield self._view(tab)
        yield Footer(compact=True, show_command_palette=False)

    def _view(self, tab: str) -> Widget:
        if tab == "overview":
            return Overview(self.record, self.selected)
        if tab == "block":
            from bisect_litert.tui.block_view import BlockView  # all that reads and draws tensors

            return BlockView(self.record, self.folder)
        if tab == "ops":
            return OpsView(self.record)
        if tab == "evidence":
            return EvidenceView(self.record)
        if tab == "compare":
            return CompareView(self.original, self.folder, self._other, self._other_folder)
        return TolerancesView(self.original)

    async def on_mount(self) -> None:
        """Puts the keys where they are wanted first."""
        self.app.theme_changed_signal.subscribe(self, lambda _: self._recolour())
        await self._enter(self.tab)

    @property
    def tab(self) -> str:
        """The tab that is shown."""
        return self.query_one(TabbedContent).active

    def action_tab(self, index: int) -> None:
        """Shows a tab."""
        self.query_one(TabbedContent).active = TABS[index]

    @on(TabbedContent.TabActivated)
    async def _tab_shown(self, event: TabbedContent.TabActivated) -> None:
        await self._enter(event.pane.id or "overview")

    async def _enter(self, tab: str) -> None:
        pane = self.query_one(f"#{tab}", TabPane)
        if not pane.children:
            await pane.mount(self._view(tab))
        self._show(tab)
        focus = {
            "overview": "#filter" if self.query_one("#filter").display else BlockTable,
            "block": "#block-scroll",
            "ops": "#ops-table",
            "evidence": "#evidence-scroll",
            "compare": "#compare-table",
            "tolerances": "#tolerance-ratio",
        }[tab]
        self.call_after_refresh(self._focus, focus)

    def _show(self, tab: str) -> None:
        """Shows the selected block in a tab that is about one."""
        if tab == "block":
            from bisect_litert.tui.block_view import BlockView

            self.query_one(BlockView).show(self.record, self.selected)
        if tab == "ops":
            self.query_one(OpsView).show(self.record, self.selected)
        if tab == "evidence":
            self.query_one(EvidenceView).show(self.record, self.selected)

    def _focus(self, what: str | type[BlockTable]) -> None:
        found = self.query(what)
        if found:
            found.first().focus()

    @on(Overview.Selected)
    def _selected(self, event: Overview.Selected) -> None:
        self.selected = event.order
        if event.opened:
            self.action_tab(TABS.index("block"))

    def open_named(self, name: str) -> None:
        """Opens the block tab at a block."""
        self.selected = next((b.order for b in self.record.blocks if b.name == name), self.selected)
        self.query_one(Overview).select(self.selected)
        if self.tab == "block":
            self._show("block")
        self.action_tab(TABS.index("block"))

    @on(Stepped)
    async def _stepped(self, event: Stepped) -> None:
        self.selected = event.order
        self.query_one(Overview).select(event.order)
        await self._enter(self.tab)

    # -- tolerances ----------------------------------------------------------------------------------------------------

    @on(TolerancesView.Changed)
    def _judge_again(self, event: TolerancesView.Changed) -> None:
        self.judge(event.settings)

    def judge(self, settings: Settings) -> None:
        """Shows the run as judged with other tolerances."""
        judged = recompute(self.original, settings)
        self.record = judged.record
        changed = tuple(differences(self.original.settings, settings))
        self.query_one(Masthead).show(self.record, changed)
        self.query_one(Overview).show(self.record)
        self.query_one(TolerancesView).show(judged)

    def _recolour(self) -> None:
        self.query_one(Masthead).refresh()
        self.query_one(Overview).recolour()
        for view in (*self.query(TolerancesView), *self.query(CompareView)):
            view.recolour()
        self._show(self.tab)

    # -- what leaves the application -----------------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Copies the cell under the cursor, what the tab offers, or the summary."""
        focused = self.focused
        if isinstance(focused, BlockTable):
            self._copy(focused.cell_text, focused.cell_text)
        elif self.tab == "evidence" and self.record.culprits:
            self._copy(self.query_one(EvidenceView).advice, "the rewrite to try")
        elif self.tab == "block" and (command := self._keeping()):
            self._copy(command, "the command that keeps this block's tensors")
        elif self.tab == "compare" and self.query_one(CompareView).markdown:
            self._copy(self.query_one(CompareView).markdown, "the comparison as Markdown")
        else:
            self.action_copy_summary()

    def _keeping(self) -> str:
        from bisect_litert.tui.block_view import BlockView

        return self.query_one(BlockView).command

    def action_copy_summary(self) -> None:
        """Copies the verdict and the culprits as Markdown."""
        from bisect_litert.reports.markdown import summary

        self._copy(summary(self.record), "the summary as Markdown")

    def _copy(self, text: str, what: str) -> None:
        self.app.copy_to_clipboard(text)
        self.notify(f"Copied {what}", timeout=2, markup=False)

    def action_save(self) -> None:
        """Asks for SVG or PNG and saves the view."""
        from bisect_litert.tui.saving import SaveScreen

        self.app.push_screen(SaveScreen(self, self.record, self.tab))

    def action_folder(self) -> None:
        """Opens the run folder, or says where it is."""
        if self.folder is None:
            self.notify("This run was not read from a folder.", severity="warning")
            return
        folder = self.folder.resolve()
        if not terminal.open_folder(folder):
            self.app.copy_to_clipboard(str(folder))
            self.notify(f"{folder} (copied; there is no desktop here to open it with)", timeout=6, markup=False)

    def action_back(self) -> None:
        """Closes the filter, goes back to the overview, and then to the picker."""
        if self.tab == "overview":
            if self.query_one(Overview).close_filter(keep=False):
                return
            if len(self.app.screen_stack) > 2:
                self.app.pop_screen()
            return
        self.action_tab(0)

    def action_filter(self) -> None:
        """Opens the overview's filter from any tab."""
        self.action_tab(0)
        self.query_one(Overview).action_filter()

    def compare_with(self, folder: Path) -> None:
        """Compares this run with an earlier one."""
        try:
            other = RunRecord.load(folder)
        except BisectError as error:
            self.notify(f"{error.message} {error.hint}", severity="error", markup=False)
            return
        self.query_one(CompareView).compare(other, folder)

    def commands(self) -> Iterator[SystemCommand]:
        """Yields what the command palette offers for a run."""
        for index, tab in enumerate(TABS):
            yield SystemCommand(f"Show {tab}", f"Go to tab {index + 1}", lambda index=index: self.action_tab(index))
        yield SystemCommand("Copy summary", "Verdict and culprits as Markdown", self.action_copy_summary)
        yield SystemCommand("Save view", "As SVG or PNG", self.action_save)
        yield SystemCommand("Open run folder", "Report, plot, logs and tensors", self.action_folder)
        yield SystemCommand("Show whole plot", "Undo the zoom", lambda: self.query_one(DivergencePlot).zoom(0))
