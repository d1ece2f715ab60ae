"""The theme's colours as Rich styles, because a text cannot refer to the theme by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from textual.color import Color

from bisect_litert.vocabulary import Mark

if TYPE_CHECKING:
    from textual.app import App


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours that are legible on the theme's background; each is always joined by a symbol or a word."""

    text: str
    faint: str
    bad: str
    warn: str
    good: str
    accent: str
    band: str
    """Background that sets a column or a line apart."""
    cursor: str
    """Background of the selected column."""

    def of(self, mark: Mark) -> str:
        """Returns the style of a mark."""
        styles = {Mark.OK: self.good, Mark.CULPRIT: f"bold {self.bad}", Mark.NOTE: self.warn}
        return styles.get(mark, self.faint)


def colours_of(app: App[Any]) -> Colours:
    """Returns the colours of the app's theme."""
    names = app.theme_variables

    def named(name: str, fallback: str) -> Color:
        try:
            return Color.parse(names.get(name, fallback))
        except ValueError:
            return Color.parse(fallback)

    dark = app.current_theme.dark
    background = named("background", "#121212" if dark else "#e0e0e0")
    text = named("foreground", "#e0e0e0" if dark else "#1f1f1f")
    red = Color.parse("#ff6b6b" if dark else "#b3261e")
    amber = Color.parse("#f5b84a" if dark else "#8a5a00")
    green = Color.parse("#7bc47f" if dark else "#1f7a33")
    blue = Color.parse("#6cb6ff" if dark else "#0b5cad")
    return Colours(
        text=text.hex6,
        faint=text.blend(background, 0.42).hex6,
        bad=red.hex6,
        warn=amber.hex6,
        good=green.hex6,
        accent=blue.hex6,
        band=background.blend(red, 0.22).hex6,
        cursor=background.blend(blue, 0.28).hex6,
    )
