"""The last collectives of a rank, and where it was, in a file that outlives its process: gloo aborts a rank whose peers
called another collective, and what a killed rank came to since its last sign of life is told by nobody else.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from moeparity.ranks.beat import LOST, process_state

SLOTS, SLOT = 8, 1024
"""So many of the last collectives are kept, each in so many bytes at most."""


_VERDICT = "verdict"


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """Where a rank has come to: how many places there were so far, the last call it finished (None: none), and the
    place in words.
    """

    moves: int
    call: int | None
    place: str

    def __str__(self) -> str:
        return f"{self.moves}\t{'' if self.call is None else self.call}\t{self.place}"


def note(line: str) -> Note:
    """What the words of a note say."""
    moves, call, place = line.split("\t", 2)
    return Note(int(moves), int(call) if call else None, place)


def finished(call: int | None) -> str:
    """The last call that a rank finished, in words."""
    return "no call finished" if call is None else f"finished call {call}"


class Notes:
    """The notes of the ranks of one job on one host, by a token of the job; this rank writes its own.

    A note costs a copy in memory. Where no file can be made, nothing is kept.
    """

    def __init__(self, job: str, rank: int) -> None:
        self._head, self._own_name = f"moeparity-ranks-{job}-", f"{rank}-{os.getpid()}"
        self._memory: mmap.mmap | None = None
        self._count = 0
        with suppress(OSError), self._file(self._own_name).open("xb+") as file:
            file.truncate((SLOTS + 1) * SLOT)
            self._memory = mmap.mmap(file.fileno(), (SLOTS + 1) * SLOT)

    def write(self, group: str, number: int, call: str, where: str) -> None:
        """A collective is about to run."""
        if self._write(self._count % SLOTS, f"{group}\t{number}\t{call}\t{where}".encode()):
            self._count += 1

    def at(self, own_note: Note) -> None:
        """This rank comes to a place."""
        self._write(SLOTS, str(own_note).encode())

    def _write(self, slot: int, line: bytes) -> bool:
        note = b"%08x %s\n" % (crc32(line), line)
        if self._memory is None or len(note) > SLOT:
            return False
        # The watching thread may close it meanwhile.
        with suppress(ValueError):
            self._memory[slot * SLOT : slot * SLOT + len(note)] = note
        return True

    def read(self) -> dict[int, dict[str, str]]:
        """By rank and `collectives.GROUP`, the last collectives of each rank on this host, one a line: number, what,
        where.
        """
        return {rank: _tails(_content(file)) for rank, _, file in self._of_ranks()}

    def places(self) -> dict[int, Note]:
        """By rank, for each on this host that came to one, its last place."""
        lines = {rank: _line(_content(file), SLOTS) for rank, _, file in self._of_ranks()}
        return {rank: note(line) for rank, line in lines.items() if line}

    def elected(self, verdict: str) -> str:
        """The first verdict that a rank on this host came to, or read in the store: who finds the store gone reads it
        here.
        """
        own_file, first = (self._file(f"{self._own_name}.{_VERDICT}"), self._file(_VERDICT))
        with suppress(OSError):
            own_file.write_text(verdict, "utf-8")
            with suppress(FileExistsError):
                first.hardlink_to(own_file)
            own_file.unlink()
            return first.read_text("utf-8")
        return verdict

    def verdict(self) -> str | None:
        """What `elected` gave the first rank on this host, if any was asked."""
        with suppress(OSError):
            return self._file(_VERDICT).read_text("utf-8")
        return None

    def clear(self) -> None:
        """Notes go of ranks on this host that can't remove their own: of processes that are gone or stopped."""
        for _, pid, file in self._of_ranks():
            if process_state(pid) in LOST:
                with suppress(OSError):
                    file.unlink()

    def close(self) -> None:
        """This rank's own notes go; with the last notes of a job its verdict, which a slower rank may still have to
        read until then.
        """
        if self._memory is None:
            return
        self._memory.close()
        self._memory = None
        with suppress(OSError):
            self._file(self._own_name).unlink()
        if not list(self._of_ranks()):
            for file in self._files():
                with suppress(OSError):
                    file.unlink()

    def _of_ranks(self) -> Iterator[tuple[int, int, Path]]:
        """Rank, process and notes of each rank on this host."""
        for file in self._files():
            rank, _, pid = file.name.removeprefix(self._head).partition("-")
            if pid.isdecimal():
                yield int(rank), int(pid), file

    def _files(self) -> Iterator[Path]:
        return Path(tempfile.gettempdir()).glob(f"{self._head}*")

    def _file(self, name: object) -> Path:
        return Path(tempfile.gettempdir()) / f"{self._head}{name}"


def _tails(content: bytes) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    for slot in range(SLOTS):
        group, _, entry = _line(content, slot).partition("\t")
        if entry:
            lines.setdefault(f"collectives.{group}", []).append(entry)
    return {name: "\n".join(entries) for name, entries in lines.items()}


def _content(file: Path) -> bytes:
    with suppress(OSError):
        return file.read_bytes()
    return b""


def _line(content: bytes, slot: int) -> str:
    """A note; empty where there is none, or one that is just being written, which fails its sum."""
    total, _, line = content[slot * SLOT : (slot + 1) * SLOT].partition(b"\n")[0].partition(b" ")
    return line.decode() if line and total == b"%08x" % crc32(line) else ""
