"""Notes: a file with a rank's last collectives and place, which outlives its process. gloo aborts a rank whose peers
called another collective, and nobody else could tell what a killed rank did after its last sign of life.
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
"""How many of the last collectives are kept, and the most bytes that each may take."""


_VERDICT = "verdict"


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """How far a rank has come: the number of places so far, the last call that it finished (None: none), and its
    place in words.
    """

    moves: int
    call: int | None
    place: str

    def __str__(self) -> str:
        return f"{self.moves}\t{'' if self.call is None else self.call}\t{self.place}"


def note(line: str) -> Note:
    """The note that was written as this line."""
    moves, call, place = line.split("\t", 2)
    return Note(int(moves), int(call) if call else None, place)


def finished(call: int | None) -> str:
    """The last call that a rank finished, in words."""
    return "no call finished" if call is None else f"finished call {call}"


class Notes:
    """The notes of the ranks of one job on one host, found by a token of the job; this rank writes its own.

    Writing a note is a copy in memory. If no file can be made, nothing is kept.
    """

    def __init__(self, job: str, rank: int) -> None:
        self._head, self._own_name = f"moeparity-ranks-{job}-", f"{rank}-{os.getpid()}"
        self._memory: mmap.mmap | None = None
        self._count = 0
        with suppress(OSError), self._file(self._own_name).open("xb+") as file:
            file.truncate((SLOTS + 1) * SLOT)
            self._memory = mmap.mmap(file.fileno(), (SLOTS + 1) * SLOT)

    def write(self, group: str, number: int, call: str, where: str) -> None:
        """Note that a collective is about to run."""
        if self._write(self._count % SLOTS, f"{group}\t{number}\t{call}\t{where}".encode()):
            self._count += 1

    def at(self, own_note: Note) -> None:
        """Note that this rank comes to a place."""
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
        """The last place of each rank on this host that has noted one."""
        lines = {rank: _line(_content(file), SLOTS) for rank, _, file in self._of_ranks()}
        return {rank: note(line) for rank, line in lines.items() if line}

    def elected(self, verdict: str) -> str:
        """The first verdict that a rank on this host found or read in the store. Ranks that find the store gone read
        it here.
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
        """The verdict that `elected` gave the first rank on this host; None if no rank has asked."""
        with suppress(OSError):
            return self._file(_VERDICT).read_text("utf-8")
        return None

    def clear(self) -> None:
        """Remove the notes of ranks on this host that can't remove their own, since their processes are gone or
        stopped.
        """
        for _, pid, file in self._of_ranks():
            if process_state(pid) in LOST:
                with suppress(OSError):
                    file.unlink()

    def close(self) -> None:
        """Remove this rank's own notes. The verdict goes with the last notes of a job, since a slower rank may still
        have to read it.
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
    """A note; "" if there is none, or if it is just being written, so that its checksum fails."""
    total, _, line = content[slot * SLOT : (slot + 1) * SLOT].partition(b"\n")[0].partition(b" ")
    return line.decode() if line and total == b"%08x" % crc32(line) else ""
