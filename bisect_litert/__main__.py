"""`python -m bisect_litert` is `bisect-litert`."""

from __future__ import annotations

import sys

from bisect_litert.cli import run_and_leave

sys.exit(run_and_leave())
