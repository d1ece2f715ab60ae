"""Error by depth on a log axis: cumulative, local and expected, culprits marked, with a cursor; mouse and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual_hires_canvas import Canvas, HiResMode

from bisect_litert.record import RunRecord
from bisect_litert.reports import formats
from bisect_litert.reports.names import shorten_all
from bisect_litert.reports.outcome import local_on_target, on_target
from bisect_litert.tui.colours import colours_of
from bisect_litert.tui.plot_window import PlotWindow
from bisect_litert.tui.plot_words import legend
from bisect_litert.vocabulary import Mark

LEFT = 6
"""Cells of the y axis with its labels."""
TOP, BOTTOM = 1, 2
"""Rows of the culprits' marks, and of the x axis with its names."""
FLOOR = 1e-9
ZOOM = 0.7


class DivergencePlot(Canvas, can_focus=True):
    """The plot; one column is selected.

    Args:
        record: The run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Block", show=False),
        Binding("right", "move(1)", "Block", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
        Binding("enter", "open", "Open block", show=False),
    ]

    class Picked(Message):
        """A block was chosen by key or click."""

        def __init__(self, order: int, opened: bool = False) -> None:
            super().__init__()
            self.order = order
            self.opened = opened

    def __init__(self, record: RunRecord, *, id: str | None = None) -> None:
        super().__init__(1, 1, id=id)
        self._cursor = 0
        self._dragged = False
        self._base: tuple[list[list[str]], list[list[str]]] | None = None
        """Characters and styles of everything but the cursor."""
        self._short: tuple[int, list[str]] = (0, [])
        """Names as short as the width asks for, and that width."""
        self._load(record)

    def _load(self, record: RunRecord) -> None:
        self._record = record
        blocks = record.blocks
        totals = [on_target(record, b) for b in blocks]
        locals_ = [local_on_target(record, b) for b in blocks]
        self._cumulative = [c.relative_l2 if c else float("nan") for c in totals]
        self._local = [c.relative_l2 if c else float("nan") for c in locals_]
        self._expected = [b.expected for b in blocks]
        self._broken = [bool(c and (c.new_nonfinite or not isfinite(c.relative_l2))) for c in totals]
        self._window = PlotWindow.whole(len(blocks))
        self._short = (0, [])

    def show(self, record: RunRecord) -> None:
        """Draws another record of the same run, keeping cursor and zoom."""
        window = self._window
        self._load(record)
        self._window = window
        self.draw()

    def select(self, order: int) -> None:
        """Moves the cursor, and the window with it."""
        if order != self._cursor and 0 <= order < len(self._record.blocks):
            self._cursor = order
            window = self._window
            if window.low <= order <= window.high and self._base is not None:
                self._draw_cursor()
            else:
                self._window = window.moved(order - (window.low + window.high) / 2)
                self.draw()

    # -- keys and mouse ------------------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        """Selects the block `step` columns on."""
        last = len(self._record.blocks) - 1
        self.post_message(self.Picked(max(0, min(last, self._cursor + step))))

    def action_open(self) -> None:
        """Opens the selected block."""
        self.post_message(self.Picked(self._cursor, opened=True))

    def zoom(self, factor: float, around: float | None = None) -> None:
        """Narrows (factor < 1) or widens the range of blocks shown; 0 shows all."""
        zoomed = self._window.zoomed(factor, self._cursor if around is None else around)
        if zoomed is not None:
            self._window = zoomed
            self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Zooms in on the block under the mouse."""
        event.stop()
        self.zoom(ZOOM, self._block_at(event.x))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Zooms out."""
        event.stop()
        self.zoom(1 / ZOOM, self._block_at(event.x))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Starts a drag, or a click."""
        self._dragged = False
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Pans while a button is held."""
        if event.button and event.delta_x:
            self._dragged = True
            self._window = self._window.moved(-event.delta_x * self._window.width / max(1, self._columns))
            self.draw()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Selects the block under the mouse, unless it was dragged."""
        self.release_mouse()
        if not self._dragged and self._record.blocks:
            x = event.x - self.gutter.left
            order = max(0, min(len(self._record.blocks) - 1, round(self._block_at(x))))
            self.post_message(self.Picked(order))

    # -- drawing -------------------------------------------------------------------------------------------------------

    @property
    def _columns(self) -> int:
        return self._canvas_size.width - LEFT

    @property
    def _rows(self) -> int:
        return self._canvas_size.height - TOP - BOTTOM

    @property
    def _crowded(self) -> bool:
        """Whether blocks are too close for markers of their own."""
        return self._columns / self._window.width < 2

    def _column(self, order: float) -> float:
        return LEFT + (order - self._window.low) / self._window.width * self._columns

    def _block_at(self, x: float) -> float:
        return self._window.low + (x + 0.5 - LEFT) / max(1, self._columns) * self._window.width

    def on_resize(self, event: events.Resize) -> None:
        """Draws for the new size."""
        self.draw()

    def notify_style_update(self) -> None:
        """Draws in the new theme's colours."""
        super().notify_style_update()
        self.draw()

    def draw(self) -> None:
        """Draws everything."""
        size = self.content_region.size
        self._base = None
        if size.width < LEFT + 8 or size.height < TOP + BOTTOM + 2:
            self.reset(Size(max(1, size.width), max(1, size.height)))
            return
        self.reset(Size(size.width, size.height), refresh=False)
        colours = colours_of(self.app)
        with self.batch_refresh():
            low, high = self._levels()
            decades = range(low, high + 1)
            step = max(1, ceil(len(decades) / max(2, self._rows // 2)))
            ticks = [d for d in decades if (d - low) % step == 0]
            row = self._scale(low, high)
            for decade in ticks:
                y = floor(row(10.0**decade))
                for x in range(LEFT, self._canvas_size.width):
                    self.set_pixel(x, y, "┈", colours.faint)
            self._series(self._expected, row, colours.faint, "", dotted=True)
            self._series(self._cumulative, row, colours.text, "●")
            self._series(self._local, row, colours.accent, "◆")
            both = self._mark_both(row, colours.accent)
            self._axes(ticks, row, colours.faint)
            self._marks(colours.bad, colours.band, colours.warn)
            self._base = ([row[:] for row in self._buffer], [row[:] for row in self._styles])
            self._draw_cursor()
        self.border_title = legend(colours, self.size.width - 6, both=both, broken=any(self._broken)).markup

    def _levels(self) -> tuple[int, int]:
        """Returns the decades around everything in the window."""
        first, last = max(0, ceil(self._window.low)), floor(self._window.high)
        shown = [s[first : last + 1] for s in (self._cumulative, self._local, self._expected)]
        values = [v for series in shown for v in series if isfinite(v) and v > FLOOR]
        low, high = (min(values), max(values)) if values else (1e-4, 1e-2)
        down, up = floor(log10(low)), ceil(log10(high))
        return down, max(up, down + 1)

    def _scale(self, low: int, high: int) -> Callable[[float], float]:
        rows = self._rows

        def row(value: float) -> float:
            share = (log10(max(value, FLOOR)) - low) / (high - low)
            return TOP + min(max((1 - share) * (rows - 1) + 0.5, 0.0), rows - 0.01)

        return row

    def _series(
        self, values: Sequence[float], row: Callable[[float], float], style: str, marker: str, dotted: bool = False
    ) -> None:
        points = [(self._column(i), row(v)) if isfinite(v) else None for i, v in enumerate(values)]
        first, last = max(0, floor(self._window.low)), ceil(self._window.high)
        shown = points[first : last + 1]
        pairs = [(*a, *b) for a, b in pairwise(shown) if a and b]
        if dotted:
            # Every other dot of the way, so that the line stays apart without colour.
            dots = [
                (x0 + (x1 - x0) * k / n, y0 + (y1 - y0) * k / n)
                for x0, y0, x1, y1 in pairs
                for n in [max(1, round(x1 - x0))]
                for k in range(n)
            ]
            self.set_hires_pixels(dots, HiResMode.BRAILLE, style)
            return
        self.draw_hires_lines(pairs, HiResMode.BRAILLE, style)
        if self._crowded:
            return
        for point in shown:
            if point and LEFT <= floor(point[0]) < self._canvas_size.width:
                self.set_pixel(floor(point[0]), floor(point[1]), marker, style)

    def _mark_both(self, row: Callable[[float], float], style: str) -> bool:
        """Marks where cumulative and local error share a cell, which one of the two would hide; whether any do."""
        if self._crowded:
            return False
        found = False
        for order, (total, local) in enumerate(zip(self._cumulative, self._local, strict=True)):
            x = floor(self._column(order))
            same = isfinite(total) and isfinite(local) and floor(row(total)) == floor(row(local))
            if same and LEFT <= x < self._canvas_size.width:
                self.set_pixel(x, floor(row(total)), "◈", f"bold {style}")
                found = True
        return found

    def _axes(self, ticks: Sequence[int], row: Callable[[float], float], style: str) -> None:
        bottom = TOP + self._rows
        for y in range(self._canvas_size.height):
            for x in range(LEFT):
                self.set_pixel(x, y, " ", style)
        for y in range(TOP, bottom):
            self.set_pixel(LEFT - 1, y, "│", style)
        for decade in ticks:
            y = floor(row(10.0**decade))
            self._text(0, y, f"{f'1e{decade}':>{LEFT - 1}}┤", style)
        self._text(LEFT - 1, bottom, "└" + "─" * self._columns, style)

    def _text(self, x: int, y: int, text: str, style: str) -> None:
        for i, char in enumerate(text):
            if 0 <= x + i < self._canvas_size.width and 0 <= y < self._canvas_size.height:
                # A wide character would shift all that follows it.
                self.set_pixel(x + i, y, char if cell_len(char) == 1 else "?", style)

    def _span(self, order: int) -> range:
        """Returns the columns that belong to a block, at least one."""
        left, right = self._column(order - 0.5), self._column(order + 0.5)
        if right - left < 3:
            middle = floor(self._column(order))
            return range(middle, middle + 1)
        return range(ceil(left), floor(right))

    def _shade(self, order: int, background: str) -> None:
        for x in self._span(order):
            for y in range(0, TOP + self._rows):
                if LEFT <= x < self._canvas_size.width:
                    char, style = self.get_pixel(x, y)
                    self.set_pixel(x, y, char, f"{style.partition(' on ')[0]} on {background}".strip())

    def _draw_cursor(self) -> None:
        """Puts the cursor and the names on what is drawn already: moving it must not cost a drawing."""
        assert self._base is not None
        colours = colours_of(self.app)
        self._buffer, self._styles = ([row[:] for row in rows] for rows in self._base)
        with self.batch_refresh():
            if self._record.blocks:
                self._shade(self._cursor, colours.cursor)
            self._names(colours.text, colours.faint)

    def _marks(self, bad: str, band: str, warn: str) -> None:
        blocks = self._record.blocks
        for block in blocks:
            if block.mark is Mark.CULPRIT:
                self._shade(block.order, band)
        for block in blocks:
            x = floor(self._column(block.order))
            if LEFT <= x < self._canvas_size.width:
                _, style = self.get_pixel(x, 0)
                background = f" on {style.partition('on ')[2]}" if "on " in style else ""
                if self._broken[block.order]:
                    self.set_pixel(x, TOP, "∞", f"bold {warn}{background}")
                if block.mark is Mark.CULPRIT:
                    self.set_pixel(x, 0, "✗", f"bold {bad}{background}")

    def _names(self, style: str, faint: str) -> None:
        """Names the selected column, and others as far as there is room."""
        blocks = self._record.blocks
        if not blocks:
            return
        y = TOP + self._rows + 1
        if self._short[0] != self._columns:
            names = [formats.clean(block.name) for block in blocks]
            self._short = (self._columns, shorten_all(names, max(8, min(16, self._columns // 4))))
        short = self._short[1]
        taken = [False] * (self._canvas_size.width + 1)
        last = len(blocks) - 1
        culprits = [b.order for b in blocks if b.mark is Mark.CULPRIT]
        for order in dict.fromkeys([self._cursor, *culprits, 0, last, *range(len(blocks))]):
            text = short[order]
            middle = self._column(order)
            if not LEFT <= middle < self._canvas_size.width:
                continue
            x = max(LEFT, min(self._canvas_size.width - len(text), floor(middle) - len(text) // 2))
            if any(taken[max(0, x - 1) : x + len(text) + 1]):
                continue
            taken[x : x + len(text)] = [True] * len(text)
            self._text(x, y, text, f"bold {style}" if order == self._cursor else faint)
            self.set_pixel(min(floor(middle), self._canvas_size.width - 1), y - 1, "┴", faint)
