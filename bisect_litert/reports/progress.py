"""Progress on stderr: stages and their times, live on a terminal, nothing elsewhere unless asked for."""

from __future__ import annotations

from time import monotonic
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bisect_litert.reports import formats
from bisect_litert.request import Progress

STAGE_WIDTH = 18


class ProgressDrawer:
    """A context manager to be called with each `Progress`.

    Args:
        console: On stderr.
        quiet: Draw nothing.
        verbose: Keep details on the finished lines, and write plain lines where the console is no terminal.
    """

    def __init__(self, console: Console, *, quiet: bool = False, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        # A dumb terminal cannot take a line back.
        animated = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, transient=True, refresh_per_second=8) if animated and not quiet else None
        self._plain = not quiet and not animated and (verbose or console.is_terminal)
        self._ascii = console.options.ascii_only
        self._stage = ""
        self._started = 0.0
        self._count = ""
        self._detail = ""
        self._step = ""

    def __enter__(self) -> ProgressDrawer:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(Text(""))
            self._live.stop()
        if kind is not None and self._stage:
            self._finish("✗", monotonic() - self._started, "stopped" if issubclass(kind, KeyboardInterrupt) else "")

    def __call__(self, progress: Progress) -> None:
        """Draws one message."""
        if progress.state == "start" or not self._stage:
            if self._stage:
                self._finish("✓", monotonic() - self._started, self._detail)
            self._stage, self._started = progress.stage, monotonic()
            if self._plain and self._verbose:
                self._print(Text(f"  {progress.stage} …"))
        if progress.found and (self._live or self._plain):
            self._print(Text.assemble(("▸ ", "yellow"), progress.found), whole=True)
        if progress.done is not None:
            self._count = f"{progress.done}/{progress.total}" if progress.total else str(progress.done)
        if progress.stage != self._stage and progress.state == "info":
            # What comes under another name is a step within the stage that runs, and gone with it.
            self._step = " ".join(filter(None, (progress.stage, progress.detail)))
        elif progress.detail:
            self._detail = progress.detail
        if progress.state == "done":
            took = progress.seconds if progress.seconds is not None else monotonic() - self._started
            self._finish("✓", took, self._detail)
        elif self._live and self._stage:
            self._live.update(self._current())

    def _current(self) -> RenderableType:
        words = "  ".join(filter(None, (self._count, self._step or self._detail)))
        return _Running(self._stage, self._started, words, self._ascii)

    def _finish(self, symbol: str, took: float, detail: str) -> None:
        stage, self._stage = self._stage, ""
        if self._live:
            self._live.update(Text(""))
        if self._live or self._plain:
            line = Text.assemble((f"{symbol} ", "green" if symbol == "✓" else "red"), f"{stage:<{STAGE_WIDTH}}")
            line.append(f"{formats.seconds(took):>9}", "dim")
            if detail:
                line.append(f"  {detail}", "dim")
            self._print(line)
        self._count = self._detail = self._step = ""

    def _print(self, line: Text, whole: bool = False) -> None:
        """Prints a line; what does not fit is cut off, unless the `whole` of it is wanted."""
        # The ASCII form of a symbol may be longer and would shift the styles behind it, so there are none.
        text = Text(formats.clean(line.plain, True)) if self._ascii else line
        self._console.print(text, no_wrap=not whole, overflow="fold" if whole else "crop", crop=not whole)


class _Running:
    """The stage under way, with a clock that moves on with every refresh."""

    def __init__(self, stage: str, started: float, rest: str, ascii_only: bool) -> None:
        self._started = started
        self._words = formats.clean(f"{stage:<{STAGE_WIDTH}}", ascii_only)
        self._rest = formats.clean(rest, ascii_only)
        self._spinner = Spinner("line" if ascii_only else "dots")

    def __rich__(self) -> RenderableType:
        clock = f"{formats.seconds(monotonic() - self._started):>9}"
        text = Text.assemble(self._words, (clock, "dim"), (f"  {self._rest}", "dim"), no_wrap=True, overflow="crop")
        self._spinner.update(text=text)
        return self._spinner
