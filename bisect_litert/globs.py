"""Globs over dotted module paths: `*` and `?` stay within one level, `**` crosses levels, `[ab]` and `{a,b}` work."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence


def translate(pattern: str) -> str:
    """Returns a glob over dotted paths as a regular expression; an unclosed bracket or brace stands for itself."""
    parts: list[str] = []
    depth = index = 0
    while index < len(pattern):
        char = pattern[index]
        index += 1
        if char == "*" and pattern.startswith("*", index):
            index += 1
            at_start = len(parts) == 0 or parts[-1] in (r"\.", "(?:", "|")
            if at_start and pattern.startswith(".", index):  # "**." also stands for no level at all
                parts.append(r"(?:.*\.)?")
                index += 1
            else:
                parts.append(".*")
        elif char == "*":
            parts.append("[^.]*")
        elif char == "?":
            parts.append("[^.]")
        elif char == "[" and (end := pattern.find("]", index + 1)) > 0:
            members = pattern[index:end]
            negated = members[0] in "!^"
            members = re.sub(r"([\\\[\]^&~|])", r"\\\1", members[negated:])
            # Within one level, as * and ?: a negated set does not match the dot between levels.
            parts.append(f"[^.{members}]" if negated else f"[{members}]")
            index = end + 1
        elif char == "{" and "}" in pattern[index:]:
            depth += 1
            parts.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            parts.append(")")
        elif char == "," and depth:
            parts.append("|")
        else:
            parts.append(re.escape(char))
    return "".join(parts) + ")" * depth


def nearest(pattern: str, known: Sequence[str]) -> list[str]:
    """Returns a few names that a pattern without a match may have meant."""
    plain = re.sub(r"[*?\[\]{}]+", "", pattern).strip(".")
    near = difflib.get_close_matches(plain or pattern, known, n=4, cutoff=0.5)
    if not near:  # a right last part in a wrong place, or the other way round
        last = plain.rpartition(".")[2].lower()
        near = [name for name in known if last and last in name.lower()][:4]
    return near or difflib.get_close_matches(plain or pattern, known, n=4, cutoff=0.2)
