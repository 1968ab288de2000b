"""Arguments that engines print or hand out by themselves, found in a log or an answer.

read: SGLang 0.5.23, srt/entrypoints/engine.py (`server_args=` in the log) and srt/entrypoints/http_server.py;
Megatron-LM d98e8a64dd, megatron/training/arguments.py `_print_args`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from moeparity import paths
from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.reading.nested import text_of
from moeparity.profiles.launch.reading.resolved import Served
from moeparity.profiles.launch.source import Unresolved

_LOGS = (".log", ".txt", ".out")
_SGLANG = re.compile(r"\bserver_args=(\{|ServerArgs\()")
_MEGATRON = re.compile(r"-{3,} arguments -{3,}")
_MEGATRON_END = re.compile(r"-{3,} end of arguments -{3,}")
_MEGATRON_LINE: Final = re.compile(r"(?:^|\s)([A-Za-z_]\w*) \.{2,} (.*)$")


def printed(path: Path) -> Served | None:
    """What an engine printed into a log, of the first that does; None where none did. Raises SpecError."""
    if path.suffix not in _LOGS or not paths.present(path):
        return None
    lines = text_of(path).split("\n")
    for number, line in enumerate(lines, 1):
        if _SGLANG.search(line):
            return _of_sglang(path, number, line)
        if _MEGATRON.search(line):
            return _served(path, "megatron", dict(_of_megatron(path, lines, number)))
    return None


def _of_sglang(path: Path, number: int, line: str) -> Served:
    """`server_args={...}`, or `server_args=ServerArgs(...)` of earlier versions."""
    start = line.index("server_args=") + len("server_args=")
    ends = [place + 1 for place, letter in enumerate(line) if letter in "})" and place >= start]
    for end in reversed(ends):
        try:
            tree = ast.parse(line[start:end], mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            continue
        if isinstance(tree, ast.Call):
            pairs = [(keyword.arg, keyword.value) for keyword in tree.keywords]
        elif isinstance(tree, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in tree.keys]
            pairs = [(str(key), value) for key, value in zip(keys, tree.values, strict=True)]
        else:
            continue
        return _served(path, "sglang", {str(name): (_value(ast.unparse(value)), number) for name, value in pairs})
    raise SpecError(
        f"{Where(path, number)}: SGLang's `server_args=` is not whole; expected all of its arguments here. Take the "
        "line as it was printed, or what the server answers at /server_info, as a file of JSON."
    )


def _of_megatron(path: Path, lines: list[str], start: int) -> Iterator[tuple[str, tuple[Any, int]]]:
    """The block behind the line `start`, one argument a line."""
    for number, line in enumerate(lines[start:], start + 1):
        if _MEGATRON_END.search(line):
            return
        if match := _MEGATRON_LINE.search(line):
            yield match[1], (_value(match[2].strip()), number)
    raise SpecError(
        f"{Where(path, start)}: Megatron-LM's arguments begin here and do not end; expected a line `end of arguments`. "
        "Take the log's whole block."
    )


def _value(text: str) -> Any:
    """What is printed as Python has it; other text is a word, and an object's own form is not resolved."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, RecursionError):
        return Unresolved(text) if re.search(r"[<(]", text) else text
    return list(value) if isinstance(value, tuple) else value


def _served(path: Path, engine: str, values: dict[str, tuple[Any, int]]) -> Served:
    lines = {f"config.{name}": number for name, (_, number) in values.items()}
    fields = {"engine": engine, "version": "", "config": {name: value for name, (value, _) in values.items()}}
    return Served(path=path, fields=fields, lines=lines)
