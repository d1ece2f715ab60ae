"""A survey of runtime versions on a terminal and in Markdown: one line per version, and since when it is right."""

from __future__ import annotations

from math import isnan
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bisect_litert.records.runtime_survey import Answer, RuntimeRow, RuntimeSurvey
from bisect_litert.reports import formats
from bisect_litert.reports.markdown_text import code, text
from bisect_litert.reports.markdown_text import row as table_row

_STYLES = {Answer.RIGHT: "green", Answer.WRONG: "bold red", Answer.UNKNOWN: "yellow"}
_LACKING = {"gpu": "GPU accelerator", "fp32": "fp32 on the GPU", "switches": "switches that keep ops off the GPU"}


def render(survey: RuntimeSurvey, console: Console, *, folder: Path | None = None) -> None:
    """Prints a survey.

    Args:
        survey: The survey.
        console: Where to.
        folder: Its folder as the user can type it.
    """
    ascii_only = console.options.ascii_only

    def line(body: Text) -> None:
        console.print(Text(formats.clean(body.plain, True)) if ascii_only else body, soft_wrap=True)

    line(Text.assemble(("bisect-litert", "bold"), f"  {formats.clean(survey.model)}"))
    line(Text())
    width = max([len("ai-edge-litert"), *(len(row.version) for row in survey.rows)])
    line(Text(f"{'ai-edge-litert':<{width}}  {'':7}  {'output off by':>13}  verdict", "dim"))
    for row in survey.rows:
        head = f"{row.version:<{width}}  "
        answer = (f"{row.answer.value:<7}", _STYLES[row.answer])
        line(Text.assemble(head, answer, f"  {_error(row):>13}  {formats.clean(_said(row))}"))
        if row.lacks:
            line(Text(f"{'':<{width}}  {'':7}  {'':13}  no {lacking(row)}", "dim"))
    line(Text())
    line(Text(survey.sentence(), "bold"))
    if folder is not None:
        line(Text(f"{folder}/: runtimes.md, and a run folder for each version", "dim"))


def markdown(survey: RuntimeSurvey) -> str:
    """Returns a survey as Markdown."""
    lines = [f"# {text(survey.model)} under {formats.plural(len(survey.rows), 'version')} of ai-edge-litert", ""]
    lines += [text(survey.sentence()), ""]
    lines += [
        "| ai-edge-litert | GPU result | output off by | verdict | it has no |",
        "| --- | --- | ---: | --- | --- |",
    ]
    for row in survey.rows:
        version = f"[{text(row.version)}]({row.folder}/report.md)" if row.folder else text(row.version)
        lines.append(table_row([version, row.answer.value, _error(row), text(_said(row)), lacking(row)]))
    for row in survey.rows:
        lines += ["", f"**{text(row.version)}**: {text(row.summary)}"]
    adapters = dict.fromkeys(row.adapter for row in survey.rows if row.adapter)
    if adapters:
        lines += ["", f"Adapter: {', '.join(map(code, adapters))}."]
    return "\n".join(lines).rstrip() + "\n"


def lacking(row: RuntimeRow) -> str:
    """Returns in words what a version has no way to ask for."""
    return ", ".join(_LACKING.get(name, name) for name in row.lacks)


def _said(row: RuntimeRow) -> str:
    return f"{row.headline}: {row.summary}" if row.answer is Answer.UNKNOWN else row.headline


def _error(row: RuntimeRow) -> str:
    if row.answer is Answer.UNKNOWN:
        return "-"
    return "not finite" if isnan(row.error) else formats.number(row.error)
