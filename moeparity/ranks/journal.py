"""A rank's journal: one JSON line for each event, on disk before the next event begins."""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from moeparity import paths
from moeparity.errors import RankError, Where

SCHEMA = "moeparity.journal/2"


class Journal:
    """Appends events to `FOLDER/rank-N.jsonl`; without a folder it keeps nothing. Threads may share it.

    Raises RankError if the file can't be made, or exists.
    """

    def __init__(self, folder: Path | None, rank: int, ranks: int) -> None:
        self._file: IO[str] | None = None
        self._lock = threading.Lock()
        if folder is not None:
            path = folder / f"rank-{rank}.jsonl"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._file = path.open("x", encoding="utf-8")
            except FileExistsError:
                raise RankError(f"{Where(path)}: another job's journal is there. Name another folder.") from None
            except OSError as error:
                raise RankError(f"{Where(path)}: can't be written: {error.strerror}.") from None
        self.write("start", schema=SCHEMA, rank=rank, ranks=ranks, host=platform.node(), pid=os.getpid())

    def write(self, event: str, **fields: Any) -> None:
        """Write one event; it is handed to the operating system at once."""
        if self._file is None:
            return
        line = json.dumps({"event": event, "at": round(time.time(), 3), **fields}, separators=(",", ":"))
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")
                self._file.flush()

    def close(self) -> None:
        """Write nothing any more."""
        if self._file is not None:
            with self._lock:
                self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What a rank held at some moment: the bits of each tensor, and the names of tensors of which nobody declared which
    ranks must have the same.
    """

    bits: dict[str, str]
    undeclared: frozenset[str]


@dataclass(slots=True)
class RankStory:
    """The contents of a rank's journal.

    calls: number -> the fields by which the call was compared. last: the last call that it finished. difference: the
    difference for which it ended the job, or of which it was told, in words. fatal_error: where it left by an error of
    its own, and that error. ended: whether it closed its guards itself. environment: its report, {} if it wrote none.
    at_start, latest: its weights when they were first looked at, and after the last of `updates` updates.
    """

    rank: int
    ranks: int
    host: str
    pid: int
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    last: int | None = None
    difference: str | None = None
    fatal_error: str | None = None
    ended: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    at_start: Weights | None = None
    latest: Weights | None = None
    updates: int = 0
    at: float = 0.0


def stories(folder: Path) -> list[RankStory]:
    """Every rank's journal in a folder, by rank. Raises RankError for a folder without any, and for a damaged
    journal.
    """
    files = sorted(folder.glob("rank-*.jsonl"))
    if not files:
        raise RankError(f"{Where(folder)}: no journals: expected rank-0.jsonl, rank-1.jsonl ..., as guards write them.")
    return sorted((_story(path) for path in files), key=lambda story: story.rank)


def _story(path: Path) -> RankStory:
    story: RankStory | None = None
    for number, event in _events(path):
        try:
            if story is None:
                if event.get("schema") != SCHEMA:
                    raise RankError(f"{Where(path, number)}: schema {event.get('schema')!r}; expected {SCHEMA}.")
                story = RankStory(event["rank"], event["ranks"], event["host"], event["pid"])
            _tell(story, event)
        except (KeyError, TypeError):
            raise RankError(f"{Where(path, number)}: no event of a journal.") from None
    if story is None:
        raise RankError(f"{Where(path)}: empty; expected the journal of a rank.")
    return story


def _tell(story: RankStory, event: dict[str, Any]) -> None:
    story.at = event["at"]
    kind = event["event"]
    if kind == "call":
        story.calls[event["call"]] = event["fields"]
    elif kind == "done":
        story.last = event["call"]
    elif kind == "difference":
        story.difference = event["text"]
    elif kind == "left":
        story.fatal_error = event["text"]
    elif kind == "environment":
        story.environment = dict(event["fields"])
    elif kind == "weights":
        story.latest = Weights(bits=dict(event["fields"]), undeclared=frozenset(event["undeclared"]))
        story.updates += story.at_start is not None
        story.at_start = story.at_start or story.latest
    elif kind == "end":
        story.ended = True


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and events. An incomplete last line, which a killed process was writing, is skipped."""
    try:
        lines = paths.contents(path, "journal of a rank").split(b"\n")
    except OSError as error:
        raise RankError(f"{Where(path)}: can't be read: {error.strerror}.") from None
    for number, line in enumerate(lines[:-1], 1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            raise RankError(f"{Where(path, number)}: no JSON; expected an event of a journal.") from None
        if not isinstance(event, dict):
            raise RankError(f"{Where(path, number)}: no event of a journal.")
        yield number, event
