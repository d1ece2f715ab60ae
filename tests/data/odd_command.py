"""A runner command that misbehaves: MODE REQUEST RESPONSE. Results are made aside and brought back as MODE says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

mode, request, response = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
names = [job["id"] for job in json.loads((request / "request.json").read_text())["jobs"]]
if mode == "nothing":
    sys.exit(0)
if mode == "refuses":
    sys.exit("no such device")
if mode == "hangs":
    time.sleep(300)
if mode == "garbage":
    for name in names:
        (response / name).mkdir()
        (response / name / "response.json").write_bytes(b"\x00garbage")
    sys.exit(0)
aside = Path(tempfile.mkdtemp())
served = Path(__file__).with_name("fake_worker.py")
worker = subprocess.Popen([sys.executable, served], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.communicate(f"{request}\t{aside}\n".encode())
print("the device said something", file=sys.stderr)
if mode == "half":  # brings the first answer back and dies
    shutil.copytree(aside / names[0], response / names[0])
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "all-or-nothing" and worker.returncode:  # brings nothing back when the far side died
    sys.exit(7)
shutil.copytree(aside, response, dirs_exist_ok=True)
sys.exit(worker.returncode and 9)
