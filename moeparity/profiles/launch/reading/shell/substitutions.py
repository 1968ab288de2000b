"""What commands between `$(` and `)` print, where the letters of their words alone tell: paths, `echo`, and filters of
text behind it.

Held to bash and the programs themselves by tests/profiles/launch/test_shell_words.py.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

_CASES = {("[:upper:]", "[:lower:]"): str.lower, ("[:lower:]", "[:upper:]"): str.upper}
_CASES |= {("A-Z", "a-z"): str.lower, ("a-z", "A-Z"): str.upper}
_SUBSTITUTION = re.compile(r"s(?P<mark>[#/|,:@])(?P<old>.+?)(?P=mark)(?P<new>.*?)(?P=mark)(?P<every>g?)", re.DOTALL)
_SPECIAL = re.compile(r"[\\*^$\[\]&\n]")
"""Letters that mean more than themselves to sed; `.` is kept, which stands for any letter."""


def printed(words: Sequence[str]) -> str | None:
    """What a command prints, without the line's end; None where more than its words decides."""
    if not words:
        return None
    name, *rest = words
    if name == "echo":
        return None if any(word.startswith("-") or "\\" in word for word in rest) else " ".join(rest)
    paths = _paths(rest)
    if name == "basename" and len(rest) == len(paths) == 2:
        last = posixpath.basename(paths[0])
        return last.removesuffix(paths[1]) if last != paths[1] else last
    if len(paths) != 1:
        return None
    if name in ("realpath", "readlink"):
        return posixpath.normpath(paths[0])
    return {"dirname": posixpath.dirname(paths[0]) or ".", "basename": posixpath.basename(paths[0])}.get(name)


def folder_entered(words: Sequence[str]) -> str | None:
    """The folder that `cd` enters; None for another command."""
    paths = _paths(words)
    return posixpath.normpath(paths[1]) if len(paths) == 2 and paths[0] == "cd" else None


def _paths(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def filtered(text: str, words: Sequence[str]) -> str | None:
    """What `sed s/OLD/NEW/` or `tr` between letters' cases makes of a line; None for all else."""
    match words:
        case ["tr", old, new] if (old, new) in _CASES:
            return _CASES[old, new](text) if text.isascii() else None
        case ["sed", script] if match := _SUBSTITUTION.fullmatch(script):
            if _SPECIAL.search(match["old"] + match["new"]) or "\n" in text:
                return None
            old, new = re.escape(match["old"]).replace(r"\.", "."), match["new"]
            return re.sub(old, lambda _: new, text, count=0 if match["every"] else 1)
    return None
