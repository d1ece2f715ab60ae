"""Plots as data URIs, in fewer colours than they were drawn with: a page holds dozens of them."""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path

SMALL_FILE = "plot.png"
COLOURS = 48


def shrink(plot: Path, small: Path) -> None:
    """Writes a plot in fewer colours, once for all pages that will show it; nothing where there is no plot."""
    from PIL import Image

    try:
        with Image.open(plot) as image:
            image.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    except (OSError, ValueError):
        small.unlink(missing_ok=True)


def data_uri(path: Path) -> str:
    """Returns a PNG as a data URI; empty when there is none."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return _data_uri(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _data_uri(path: Path, _size: int, _modified: int) -> str:
    try:
        return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    except OSError:
        return ""
