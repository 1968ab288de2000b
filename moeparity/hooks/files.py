"""The files that a plugin writes into one folder. Any engine may load this: it imports only what comes with Python."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

VARIABLE = "MOEPARITY_SERVED"
"""The environment variable that names the folder; nothing is written where it is not set."""
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")


def folder() -> Path | None:
    """The folder that the environment names, made if it is not there; None where it names none."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def write(name: str, fields: dict[str, Any]) -> None:
    """Write one JSON file of the folder, whole or not at all; one value a line, so that a line names it."""
    path = folder()
    if path is not None:
        unfinished = path / f".{name}.{os.getpid()}"
        unfinished.write_text(json.dumps(fields, indent=1) + "\n", "utf-8")
        unfinished.replace(path / name)


def appended(name: str) -> TextIO:
    """A file of JSON lines of the folder, open at its end."""
    path = folder()
    assert path is not None
    return (path / name).open("a", encoding="utf-8")


def line(file: TextIO, fields: Mapping[str, Any]) -> None:
    """Add one JSON object to a file of JSON lines, so that it is there at once."""
    file.write(json.dumps(fields, separators=(",", ":")) + "\n")
    file.flush()


def complain(doing: str, error: BaseException) -> None:
    """Note in the folder what could not be written; the engine goes on, and so it does if this fails too."""
    try:
        path = folder()
        if path is not None:
            with (path / "errors.jsonl").open("a", encoding="utf-8") as file:
                line(file, {"process": os.getpid(), "doing": doing, "error": f"{type(error).__name__}: {error}"})
    except Exception as second:  # noqa: BLE001  the engine's business comes first
        sys.stderr.write(f"moeparity: nothing can be written to {os.environ.get(VARIABLE)}: {second}\n")


def environment(beginnings: Iterable[str]) -> dict[str, str]:
    """The environment variables that begin so, by name, without what may be secret."""
    heads = tuple(beginnings)
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(heads) and not any(word in name for word in _SECRET)
    }
