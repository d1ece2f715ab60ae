"""Cuts what names a person or a machine out of text and files that leave this machine: paths, user, host.

Of a path its last part stays, which is what a reader needs of "…/site-packages/torch/nn/modules/linear.py".
"""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import socket
from pathlib import Path
from typing import Any

GONE = "…"
_GENERIC = frozenset(
    {"root", "user", "admin", "runner", "ubuntu", "debian", "localhost", "localdomain", "home", "local"}
)
_POSIX = re.compile(r"(?<![\w.:/…])~?(?:/[\w.@+~%=,-]+){2,}/?")
_WINDOWS = re.compile(r"(?<!\w)(?:[A-Za-z]:|\\)\\(?:[^\\/:*?\"<>|\s]+\\)*([^\\/:*?\"<>|\s]*)")
_FILE_URL = re.compile(r"file://(?=/)")


class Scrubber:
    """Cuts paths, and the given names wherever they stand as a word.

    Args:
        names: User and host names; this machine's own by default. Names that everybody has ("root") stay.
        also: Names beyond these, such as the machine that ran the GPU jobs.
    """

    def __init__(self, names: tuple[str, ...] | None = None, also: tuple[str, ...] = ()) -> None:
        known = (*(own_names() if names is None else names), *also)
        words = sorted({n for n in known if len(n) > 1 and n.lower() not in _GENERIC}, key=len, reverse=True)
        # Not \b: an underscore does not make a user name another one.
        pattern = "|".join(re.escape(word) for word in words)
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])", re.IGNORECASE) if words else None

    def text(self, text: str) -> str:
        """Returns text without paths and names."""
        text = _FILE_URL.sub("", text)
        text = _POSIX.sub(lambda match: f"{GONE}/{match[0].rstrip('/').rpartition('/')[2]}", text)
        text = _WINDOWS.sub(lambda match: f"{GONE}\\{match[1]}", text)
        return self._names.sub(GONE, text) if self._names else text

    def value(self, value: Any) -> Any:
        """Returns a JSON value with every string in it cut, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        return value

    def json(self, text: str) -> str:
        """Returns a JSON document with every string in it cut."""
        return json.dumps(self.value(json.loads(text)), indent=1, allow_nan=False) + "\n"


def own_names() -> tuple[str, ...]:
    """Returns this machine's user and host names."""
    found = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with contextlib.suppress(OSError, KeyError, ImportError):  # no such user, as in some containers
        found.add(getpass.getuser())
    return tuple(sorted(name for name in found if name))
