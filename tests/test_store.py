"""The store under what happens to cache folders: damage, limits, other processes, a full or read-only place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bisect_litert.graphs.store import Store


def made(folder: Path, content: bytes) -> Path:
    path = folder / "made"
    path.write_bytes(content)
    return path


def test_gives_back_what_was_put(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert not store.get("k", tmp_path / "out")
    store.put("k", made(tmp_path, b"content" * 1000))
    assert store.get("k", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"content" * 1000
    assert not store.get("other", tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "header", "longer"])
def test_a_damaged_entry_is_none_and_can_be_made_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path / "store")
    store.put("k", made(tmp_path, b"content" * 1000))
    entry = tmp_path / "store" / "k"
    whole = entry.read_bytes()
    entry.write_bytes(
        {
            "cut": whole[:-1],
            "changed": whole[:-1] + b"!",
            "empty": b"",
            "header": b"x" + whole[1:],
            "longer": whole + b"x",
        }[damage]
    )
    assert not store.get("k", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    store.put("k", made(tmp_path, b"again"))
    assert store.get("k", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"again"


def test_stays_under_its_limit_and_drops_what_was_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", limit=4000)
    for age, key in ((300, "a"), (200, "b"), (100, "c")):
        store.put(key, made(tmp_path, bytes(1000)))
        entry = tmp_path / "store" / key
        os.utime(entry, (entry.stat().st_mtime - age,) * 2)
    assert store.get("a", tmp_path / "out")  # used last, so it stays
    store.put("d", made(tmp_path, bytes(1000)))
    held = {path.name for path in (tmp_path / "store").iterdir()}
    assert held == {"a", "c", "d"}
    assert sum(path.stat().st_size for path in (tmp_path / "store").iterdir()) <= 4000


def test_what_would_push_out_everything_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", limit=1000)
    store.put("k", made(tmp_path, bytes(900)))
    assert not store.get("k", tmp_path / "out")


def test_what_a_dead_run_left_half_written_is_dropped_in_its_turn(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", limit=3000)
    store.put("a", made(tmp_path, bytes(1000)))
    left = tmp_path / "store" / "x.partial"
    left.write_bytes(bytes(1500))
    os.utime(left, (1, 1))
    store.put("b", made(tmp_path, bytes(1000)))
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"a", "b"}


def test_a_folder_that_takes_nothing_costs_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "store")
    store.put("k", made(tmp_path, b"content"))
    assert not store.get("k", tmp_path / "out")


def test_runs_at_the_same_time_share_it(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from bisect_litert.graphs.store import Store
store, me = Store(Path(sys.argv[1]) / "store", limit=40_000), sys.argv[2]
mine = Path(sys.argv[1]) / me
for turn in range(200):
    key = f"k{turn % 7}"
    mine.write_bytes(key.encode() * 2000)
    store.put(key, mine)
    other = f"k{(turn * 3) % 7}"
    if store.get(other, Path(f"{mine}.out")):
        assert Path(f"{mine}.out").read_bytes() == other.encode() * 2000
"""
    running = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in ("one", "two")]
    assert [process.wait(120) for process in running] == [0, 0]
    assert not list((tmp_path / "store").glob("*.partial"))
