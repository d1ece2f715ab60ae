"""Which module an op belongs to, read off the module path in its tensor's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def levels(part: str) -> list[str]:
    """The levels of one path in a tensor's name: "pkg.Model/pkg.Block_b3/torch...Linear_fc;1" has three."""
    return [level for level in re.sub(r";\d*(/tap)?$", "", part).split("/") if level]


def reaches(words: Sequence[str], path: Sequence[str]) -> int:
    """How many levels of a module path a name's levels carry, in order and down to the path's end; 0 when not to the
    end.

    A level reads "package.Class_attribute", and attribute names may hold underscores themselves, so it is compared by
    its end.
    Containers may be missing from a name.
    """
    count, position = 0, 0
    for step in path:
        for index in range(position, len(words)):
            if words[index] == step or words[index].endswith("_" + step):
                count, position = count + 1, index + 1
                break
    reached = bool(path) and any(w == path[-1] or w.endswith("_" + path[-1]) for w in words)
    return count if reached else 0


class Owners:
    """The modules of a model, to look tensor names up in.

    Args:
        modules: All module paths.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._by_end: dict[str, list[tuple[str, list[str]]]] = {}
        """Paths with their steps, by the last step: a name has to end where a module's path ends."""
        for module in modules:
            path = module.split(".")
            self._by_end.setdefault(path[-1], []).append((module, path))

    def module_of(self, tensor_name: str, block: str) -> str:
        """Returns the deepest module whose path a tensor's name carries.

        Args:
            tensor_name: Name in the .tflite file; several paths joined by ";;" where ops were fused.
            block: Block the op lies in; its own modules go before others of the same label.

        Returns:
            A module path; empty when the name carries none.
        """
        best: tuple[tuple[bool, int, int], str] = ((False, 0, 0), "")
        for part in tensor_name.split(";;"):
            words = levels(part)
            for module, path in self._ending_as(words[-1]) if words else ():
                count = reaches(words, path)
                inside = module == block or module.startswith(block + ".")
                rank = (inside, count, -len(path))
                if count and rank > best[0]:
                    best = (rank, module)
        return best[1]

    def _ending_as(self, word: str) -> Iterator[tuple[str, list[str]]]:
        """Modules whose last step ends a level: all of it, or what stands behind an underscore, of which a step's own
        name may hold some. A parent is no owner of its child's op."""
        yield from self._by_end.get(word, ())
        at = word.find("_")
        while at >= 0:
            yield from self._by_end.get(word[at + 1 :], ())
            at = word.find("_", at + 1)
