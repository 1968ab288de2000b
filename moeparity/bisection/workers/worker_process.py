"""The program of a worker's process, and the framing of messages. It imports little, so that it starts at once."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import IO, Final

WORK: Final = "moeparity.bisection.workers.worker_process"
_LENGTH = 8
_PAUSE = 0.25
"""Seconds between two reports of progress."""


def work() -> None:
    """Run as a worker until standard input ends; anything printed goes to standard error."""
    tasks: SimpleQueue[bytes] = SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # What users' functions print must not look like an answer.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_receive, args=(source, tasks), daemon=True).start()
    from moeparity.bisection.workers.message import PART, SERVE

    server, heard = import_module(SERVE).Server(), [0.0]

    def report_part(part: float) -> None:
        if time.monotonic() - heard[0] >= _PAUSE:
            heard[0] = time.monotonic()
            write(answers, PART + str(part).encode())

    # A closed pipe means that the command has ended.
    with suppress(OSError):
        while True:
            write(answers, server.answer(tasks.get(), report_part))
    os._exit(0)


def _receive(source: IO[bytes], tasks: SimpleQueue[bytes]) -> None:
    """Pass tasks on until the command is gone, then end the process, since nobody wants the result."""
    while (message := read(source)) is not None:
        tasks.put(message)
    os._exit(0)


def write(file: IO[bytes], data: bytes) -> None:
    """Write a message, preceded by its length."""
    file.write(len(data).to_bytes(_LENGTH, "little") + data)
    file.flush()


def read(file: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the file, also in the middle of a message."""
    head = file.read(_LENGTH)
    length = int.from_bytes(head, "little")
    data = file.read(length) if len(head) == _LENGTH else b""
    return data if len(head) == _LENGTH and len(data) == length else None


if __name__ == "__main__":
    work()
