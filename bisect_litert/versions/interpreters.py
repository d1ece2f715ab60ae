"""Python interpreters other than the one this runs in."""

from __future__ import annotations

import os


def foreign_environment() -> dict[str, str]:
    """Returns the environment variables for another interpreter.

    PYTHONPATH and PYTHONHOME are meant for this one; there they would bring in this one's packages.
    """
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
