"""`python -m bisect_litert` is `bisect-litert`."""

from __future__ import annotations

import sys

from bisect_litert.cli import main

sys.exit(main())
