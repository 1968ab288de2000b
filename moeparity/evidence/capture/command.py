"""A program is started with a capture in each of its Python processes, and waited for; its exit code stays its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from moeparity.errors import MoeparityError, TraceError, Where
from moeparity.evidence.capture.child import VARIABLE, message
from moeparity.evidence.capture.settings import CaptureSettings
from moeparity.evidence.capture.verify.verifier import Verification
from moeparity.evidence.trace.reader import open_trace
from moeparity.evidence.trace.writer import EVENTS

INJECTED = Path(__file__).parent / "inject"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DEATH = 1
"""PR_SET_PDEATHSIG of Linux."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank left: how many bytes, whether its recording got to its end, and what its notes say."""

    rank: int
    nbytes: int
    whole: bool
    notes: tuple[str, ...]


def run(
    command: Sequence[str], folder: Path | None, settings: CaptureSettings, verification: Verification | None = None
) -> int:
    """Run a command under a capture, and return its exit code: 128 and more where a signal ended it.

    Raises TraceError where the folder holds a trace, MoeparityError for a command that can't be started.
    """
    if folder is not None and any(folder.glob("rank-*")):
        raise TraceError(f"{Where(folder)}: there is a trace already. Name a folder that is not there.")
    environment = dict(os.environ)
    environment[VARIABLE] = message(folder, settings, tuple(command), verification)
    environment[f"{VARIABLE}_SOURCE"] = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECTED), environment.get("PYTHONPATH"))))
    try:
        process = subprocess.Popen(list(command), env=environment, preexec_fn=_dies_with_us)  # noqa: PLW1509, S603
    except OSError as error:
        raise MoeparityError(
            f"capture: {command[0]!r} can't be started: {error.strerror}. Expected a command, as in "
            "`moeparity capture -- python script.py`."
        ) from None
    with _forwarding(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


def parts(folder: Path) -> list[RankPart]:
    """What the ranks of a program left in a folder; none where nothing was recorded."""
    if not any(folder.glob("rank-*")):
        return []
    ranks = open_trace(folder).ranks
    return [
        RankPart(
            rank.head.rank,
            sum(path.stat().st_size for path in rank.folder.rglob("*") if path.is_file()),
            _is_whole(rank.folder / EVENTS),
            _notes(rank.folder / EVENTS),
        )
        for rank in ranks
    ]


def _is_whole(events: Path) -> bool:
    """Whether the last line is the end."""
    with events.open("rb") as file:
        file.seek(max(0, events.stat().st_size - 200))
        return b'\n{"e":"end"' in b"\n" + file.read()


def _notes(events: Path) -> tuple[str, ...]:
    """What the notes of a trace say, whose other records are not read."""
    with events.open("rb") as file:
        return tuple(json.loads(line)["text"] for line in file if line.startswith(b'{"e":"note"'))


def _dies_with_us() -> None:
    """In the child: a killed `moeparity capture` takes its program with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGTERM)


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals go on to the program; this process waits for what it makes of them."""

    def forward(number: int, _: FrameType | None) -> None:
        # A terminal sends Ctrl-C to the program by itself.
        if number != signal.SIGINT or not os.isatty(0):
            process.send_signal(number)

    before: dict[signal.Signals, Callable[..., Any] | int | None] = {}
    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
