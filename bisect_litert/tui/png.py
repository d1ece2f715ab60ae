"""A screen as PNG: cells drawn with Pillow, which matplotlib brings along with a monospaced font.

Blocks, shades and braille are drawn as shapes: no font has to know them, and they join without seams.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from textual.screen import Screen

CELL = (14, 28)
"""Pixels of a cell."""
FONT_SIZE = 22
MARGIN = 16

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SHADES = {"░": 0.25, "▒": 0.5, "▓": 0.75}

RGB = tuple[int, int, int]


def write_png(view: Screen[Any], path: Path) -> None:
    """Draws a screen.

    Args:
        view: The screen.
        path: The file to write.

    Raises:
        OSError: It cannot be written.
    """
    from PIL import Image, ImageDraw

    width, height = view.size
    background = view.styles.background.rgb
    image = Image.new("RGB", (width * CELL[0] + 2 * MARGIN, height * CELL[1] + 2 * MARGIN), background)
    draw = ImageDraw.Draw(image)
    fonts = _fonts()
    for y, line in enumerate(_lines(view)):
        x = 0
        for segment in line:
            style = segment.style or Style()
            front, back = _colours(style, background)
            for char in segment.text:
                cells = cell_len(char)
                left, top = MARGIN + x * CELL[0], MARGIN + y * CELL[1]
                box = (left, top, left + max(1, cells) * CELL[0] - 1, top + CELL[1] - 1)
                if back != background:
                    draw.rectangle(box, fill=back)
                if not _shape(draw, char, box, front, back) and not char.isspace():
                    font = fonts["bold" if style.bold else "plain"]
                    draw.text((left, top + CELL[1] * 0.78), char, fill=front, font=font, anchor="ls")
                if style.underline:
                    draw.line((left, box[3] - 2, box[2], box[3] - 2), fill=front, width=2)
                x += cells
    image.save(path)


def _lines(view: Screen[Any]) -> Iterator[list[Segment]]:
    for strip in view._compositor.render_strips():
        yield list(strip)


def _fonts() -> dict[str, Any]:
    from matplotlib import get_data_path
    from PIL import ImageFont

    folder = Path(get_data_path()) / "fonts" / "ttf"
    names = {"plain": "DejaVuSansMono.ttf", "bold": "DejaVuSansMono-Bold.ttf"}
    return {kind: ImageFont.truetype(str(folder / name), FONT_SIZE) for kind, name in names.items()}


def _colours(style: Style, background: RGB) -> tuple[RGB, RGB]:
    front = _rgb(style.color, True) if style.color else (224, 224, 224)
    back = _rgb(style.bgcolor, False) if style.bgcolor else background
    if style.reverse:
        front, back = back, front
    if style.dim:
        front = _mixed(front, back, 0.5)
    return front, back


def _rgb(colour: Color, foreground: bool) -> RGB:
    triplet = colour.get_truecolor(DEFAULT_TERMINAL_THEME, foreground=foreground)
    return triplet.red, triplet.green, triplet.blue


def _mixed(a: RGB, b: RGB, share: float) -> RGB:
    red, green, blue = (round(x + (y - x) * share) for x, y in zip(a, b, strict=True))
    return red, green, blue


def _shape(draw: Any, char: str, box: tuple[int, int, int, int], front: RGB, back: RGB) -> bool:
    """Draws what is better drawn than written; whether it did."""
    left, top, right, bottom = box
    if char in _EIGHTHS[1:]:
        tall = round((bottom - top + 1) * _EIGHTHS.index(char) / 8)
        draw.rectangle((left, bottom - tall + 1, right, bottom), fill=front)
    elif char in _SHADES:
        draw.rectangle(box, fill=_mixed(back, front, _SHADES[char]))
    elif "\u2800" <= char <= "\u28ff":
        _braille(draw, ord(char) - 0x2800, box, front)
    elif char == "▀":
        draw.rectangle((left, top, right, (top + bottom) // 2), fill=front)
    else:
        return False
    return True


def _braille(draw: Any, dots: int, box: tuple[int, int, int, int], front: RGB) -> None:
    # Bit by bit: the two columns of three dots, then the fourth row (Unicode, Braille Patterns).
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
    wide, high = (box[2] - box[0] + 1) / 2, (box[3] - box[1] + 1) / 4
    for bit, (column, row) in enumerate(places):
        if dots >> bit & 1:
            x, y = box[0] + (column + 0.5) * wide, box[1] + (row + 0.5) * high
            draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=front)
