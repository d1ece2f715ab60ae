"""Ends a process with all it started, also what moved into a session of its own. Linux tells who started whom."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def kill_all(pid: int) -> None:
    """Kills a process, its group, and whatever descends from it."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Returns the processes that descend from one; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything; the parent stands behind it.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = list(children.get(pid, ()))
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += children.get(each, ())
    return found
