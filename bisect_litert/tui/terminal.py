"""The terminal around the application: its background, tmux's clipboard, and what opens folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def is_light() -> bool:
    """Whether the terminal says that its background is light (COLORFGBG; most say nothing, and count as dark)."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background in ("7", "15")


def copy_in_tmux(text: str) -> None:
    """Hands `text` to tmux, if this runs inside it: to its buffer, and on to the terminal's clipboard."""
    tmux = shutil.which("tmux") if os.environ.get("TMUX") else None
    if tmux is None:
        return
    try:
        subprocess.run(
            [tmux, "load-buffer", "-w", "-"], input=text.encode(), timeout=2, check=False, capture_output=True
        )
    except (OSError, subprocess.SubprocessError):
        return


def open_folder(folder: Path) -> bool:
    """Opens a folder in the desktop's file manager. False where there is no desktop, as over ssh."""
    if sys.platform == "darwin":
        command = ["open", str(folder)]
    elif os.name == "nt":
        command = ["explorer", str(folder)]
    elif (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and shutil.which("xdg-open"):
        command = ["xdg-open", str(folder)]
    else:
        return False
    try:
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError:
        return False
    return True
