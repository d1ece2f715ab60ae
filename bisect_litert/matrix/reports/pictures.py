"""Plots as data URIs, in fewer colours than they were drawn with: a page holds dozens of them."""

from __future__ import annotations

import base64
import io
from functools import lru_cache
from pathlib import Path

COLOURS = 48


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
        data = path.read_bytes()
    except OSError:
        return ""
    return f"data:image/png;base64,{base64.b64encode(_smaller(data)).decode('ascii')}"


def _smaller(data: bytes) -> bytes:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            file = io.BytesIO()
            image.convert("RGB").quantize(COLOURS).save(file, "PNG", optimize=True)
    except (OSError, ValueError):
        return data
    return min(data, file.getvalue(), key=len)
