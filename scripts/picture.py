"""Draws the picture of the terminal UI in the README: scripts/picture.py RUN [docs/tui.png]

RUN is a run folder, made by: bisect-litert examples/layernorm_overflow.py --blocks "blocks.*" --out RUN
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bisect_litert.record import RunRecord
from bisect_litert.tui.app import BisectApp
from bisect_litert.tui.png import write_png

SIZE = (112, 33)


async def draw(run: Path, picture: Path) -> None:
    """Draws the overview of a run."""
    app = BisectApp(RunRecord.load(run), run, light=False)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(0.5)
        write_png(app.screen, picture)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    target = Path(sys.argv[2] if len(sys.argv) == 3 else "docs/tui.png")
    asyncio.run(draw(Path(sys.argv[1]), target))
    print(target)
