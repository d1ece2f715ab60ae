"""The README of a round: what whoever holds the device has to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def readme(name: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """The steps, for whoever holds the device."""
    lines = [
        f"  {entry['name']:<22} {entry['model']}, {' + '.join(entry['accelerators'])}, precision {entry['precision']}"
        + "".join(f", {variable}={value}" for variable, value in entry["environment"].items())
        for entry in entries
    ]
    return (
        f"""What to run on the device. manifest.json says everything below in a form for programs.

1. Copy this folder to the device, for example
     adb push {name} /data/local/tmp/bisect/{name}
2. Run every entry with LiteRT's CompiledModel. In the source tree of bisect-litert, examples/android has a loop in
   Kotlin and one in C++ that read manifest.json and do all of this:
     - compile "model" for "accelerators"; when that is refused, for those in "fallback"
     - GPU precision as in "precision": "default" is what ships, "fp32" forces fp32
     - set the variables in "environment", if there are any, before compiling
     - fill the inputs, by name, from the .raw files: C order, little endian, no header (.npy is the same with one)
     - fill the outputs before the run with the value in "sentinels", where your language can; it shows what is never
       written
     - write each output's bytes to its "file", below one folder: results/ENTRY/000.raw and so on
   An entry that fails gets results/ENTRY/status.json: {{"status": "failed", "error": "..."}}. A file
   results/ENTRY/started with the entry's "id" in it, written before a run, tells a crash from a run that was never
   made, and results of this export from those of an earlier one; clear what lies in results/ENTRY first. The part of
   the log that belongs to a run, as results/ENTRY/log.txt, tells what ran on the GPU. Leave out what you cannot run.
   results/device.json may say {{"device": "...", "gpu": "...", "ai-edge-litert": "...", "platform": "..."}}.
3. Bring the results back and let bisect-litert go on:
     adb pull /data/local/tmp/bisect/results .
     bisect-litert ingest {{the folder that holds {name}}} results

Entries:
"""
        + "\n".join(lines)
        + "\n"
    )
