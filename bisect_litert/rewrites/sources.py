"""The source of classes and functions of this package, as it is written into a user's file."""

from __future__ import annotations

import inspect
from typing import Any


def source_of(*things: Any) -> str:
    """Returns the source of classes and functions, in the order given.

    They may use `torch`, `nn`, `F`, `math`, what `preamble.py` defines, and each other.
    """
    return "\n\n".join(inspect.getsource(thing).rstrip() for thing in things) + "\n"
