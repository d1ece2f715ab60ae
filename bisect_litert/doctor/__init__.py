"""Looks at everything a run depends on, one thing after the other, and says what to do about what is wrong.

Nothing heavy is imported here: what needs torch or LiteRT runs in a child process. No check may take longer than its
time limit, whatever it waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from bisect_litert.doctor import adapters, installed, places, self_test
from bisect_litert.records.checkup import Check, Checkup, State

LIMIT = 30.0
"""Seconds that a check on this machine's files may take."""


def examine(tell: Callable[[Check], None] = lambda _: None, *, quick: bool = False) -> Checkup:
    """Looks at everything.

    Args:
        tell: Told of every check as it is done.
        quick: Leave out what runs anything on a GPU.
    """
    found: list[Check] = []
    for name, look, limit in _plan(quick):
        for check in _within(limit, name, look):
            found.append(check)
            tell(check)
    return Checkup(tuple(found))


def _plan(quick: bool) -> Iterable[tuple[str, Callable[[], Iterable[Check]], float]]:
    yield "python", installed.python, LIMIT
    yield "packages", installed.packages, LIMIT
    yield "driver", installed.drivers, LIMIT
    yield "runtime folder", places.runtime_folder, LIMIT
    yield "shader cache", places.shader_cache, LIMIT
    yield "disk", places.disk, LIMIT
    yield "memory", places.memory, LIMIT
    if not quick:
        for runtime in adapters.known():
            yield adapters.title(runtime), partial(adapters.look, runtime), adapters.LIMIT
        yield "self-test", self_test.run, self_test.LIMIT


def _within(seconds: float, name: str, look: Callable[[], Iterable[Check]]) -> list[Check]:
    """Runs a check, in a thread that is left behind when it takes too long."""
    answer: list[Check] = []

    def run() -> None:
        try:
            answer.extend(look())
        except Exception as error:  # a check that fails is a finding too, and the others are still wanted
            said = f"could not be looked at: {type(error).__name__}: {error}"
            answer.append(Check(name, State.BAD, said, "This is a bug of bisect-litert; please report it."))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return [Check(name, State.BAD, f"gave no answer within {seconds:g} s", "See what holds it up, then try again.")]
    return answer
