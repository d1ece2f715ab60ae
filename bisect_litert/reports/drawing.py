"""Draws the plot in a process of its own, started early: matplotlib takes a second to load, which a run has to spare.

The process waits for the run folder's name on its standard input, reads the record there, and answers "done". Whatever
goes wrong with it, the caller draws the plot itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from bisect_litert.record import RunRecord

PATIENCE = 60.0
"""Seconds after which the caller draws the plot itself."""


class Drawer:
    """A process that has matplotlib loaded when the record is there. Use `close` when it is not needed after all."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bisect_litert.reports.drawing"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is the run's to handle
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def draw(self, folder: Path, name: str) -> bool:
        """Draws the record in `folder` into the file `name`; False when the process did not manage."""
        process, self._process = self._process, None
        if process is None:
            return False
        try:
            said, _ = process.communicate(f"{folder.resolve()}\t{name}\n", timeout=PATIENCE)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
            return False
        return process.returncode == 0 and said.strip() == "done"

    def close(self) -> None:
        """Ends the process without a plot."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main() -> None:
    """Loads matplotlib, then draws what is asked for on standard input."""
    from bisect_litert.reports import plot

    plot.load()
    line = sys.stdin.readline()
    if not line:
        return
    folder, name = line.rstrip("\n").split("\t")
    plot.save(RunRecord.load(Path(folder)), Path(folder) / name)
    print("done")


if __name__ == "__main__":
    main()
