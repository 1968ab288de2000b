"""The last collectives of a rank, and where it was, in a file that outlives its process: gloo aborts a rank whose peers
called another collective, and what a killed rank came to since its last sign of life is told by nobody else.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

SLOTS, SLOT = 8, 1024
"""So many of the last collectives are kept, each in so many bytes at most."""


class Notes:
    """The notes of the ranks of one job on one host, by a token of the job; this rank writes its own.

    A note costs a copy in memory. Where no file can be made, nothing is kept.
    """

    def __init__(self, job: str, rank: int) -> None:
        self._head, self._rank = f"moeparity-ranks-{job}-", rank
        self._memory: mmap.mmap | None = None
        self._count = 0
        with suppress(OSError), self._file(rank).open("xb+") as file:
            file.truncate((SLOTS + 1) * SLOT)
            self._memory = mmap.mmap(file.fileno(), (SLOTS + 1) * SLOT)

    def write(self, group: str, number: int, call: str, where: str) -> None:
        """A collective is about to run."""
        if self._write(self._count % SLOTS, f"{group}\t{number}\t{call}\t{where}".encode()):
            self._count += 1

    def at(self, place: str, call: int | None) -> None:
        """This rank comes to a place; `call` is the last one it finished."""
        self._write(SLOTS, f"{'' if call is None else call}\t{place}".encode())

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
        return {rank: _tails(_content(file)) for rank, file in self._of_ranks()}

    def places(self) -> dict[int, tuple[int | None, str]]:
        """By rank, for each on this host that came to one, the last call it finished (None: none) and its place."""
        lines = {rank: _line(_content(file), SLOTS) for rank, file in self._of_ranks()}
        parts = {rank: line.partition("\t") for rank, line in lines.items() if line}
        return {rank: (int(call) if call else None, place) for rank, (call, _, place) in parts.items()}

    def elected(self, verdict: str) -> str:
        """The first verdict that a rank on this host came to, where there is no store to say it."""
        own_file, first = (self._file(f"{self._rank}.verdict"), self._file("verdict"))
        with suppress(OSError):
            own_file.write_text(verdict, "utf-8")
            with suppress(FileExistsError):
                first.hardlink_to(own_file)
            own_file.unlink()
            return first.read_text("utf-8")
        return verdict

    def clear(self) -> None:
        """The job is at its end: notes of all its ranks on this host go, also of those that can't remove their own."""
        for file in self._files():
            with suppress(OSError):
                file.unlink()

    def close(self) -> None:
        """This rank's own notes go."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
            with suppress(OSError):
                self._file(self._rank).unlink()

    def _of_ranks(self) -> Iterator[tuple[int, Path]]:
        names = ((file.name.removeprefix(self._head), file) for file in self._files())
        return ((int(rank), file) for rank, file in names if rank.isdecimal())

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
