"""The last collectives of a rank in a file that outlives its process: gloo aborts a rank whose peers called another
collective, and what it had called itself is told by nobody else.
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
            file.truncate(SLOTS * SLOT)
            self._memory = mmap.mmap(file.fileno(), SLOTS * SLOT)

    def write(self, group: str, number: int, call: str, where: str) -> None:
        """A collective is about to run."""
        line = f"{group}\t{number}\t{call}\t{where}".encode()
        if self._memory is not None and len(line) < SLOT - 10:
            start = self._count % SLOTS * SLOT
            self._memory[start : start + SLOT] = (b"%08x %s\n" % (crc32(line), line)).ljust(SLOT, b"\0")
            self._count += 1

    def read(self) -> dict[int, dict[str, str]]:
        """By rank and `collectives.GROUP`, the last collectives of each rank on this host, one a line: number, what,
        where.
        """
        files = {file.name.removeprefix(self._head): file for file in self._files()}
        return {int(rank): _tails(file) for rank, file in files.items() if rank.isdecimal()}

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

    def _files(self) -> Iterator[Path]:
        return Path(tempfile.gettempdir()).glob(f"{self._head}*")

    def _file(self, name: object) -> Path:
        return Path(tempfile.gettempdir()) / f"{self._head}{name}"


def _tails(file: Path) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    content = b""
    with suppress(OSError):
        content = file.read_bytes()
    for start in range(0, len(content), SLOT):
        # A note that is just being written fails its sum.
        total, _, line = content[start : start + SLOT].partition(b"\n")[0].partition(b" ")
        if line and total == b"%08x" % crc32(line):
            group, _, entry = line.decode().partition("\t")
            lines.setdefault(f"collectives.{group}", []).append(entry)
    return {name: "\n".join(entries) for name, entries in lines.items()}
