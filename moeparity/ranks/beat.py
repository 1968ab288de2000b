"""Signs of life of a rank, and what the operating system says of a process that gives none."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path

LOST = {"gone": "was killed", "stopped": "is stopped"}
"""States of a process that can't give signs of life any more, in words."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life of a rank.

    moves: at how many places the rank has been. call: the last call that it finished. place: where it is, in words.
    waits: it waits for others there. within: the group in whose collective it is. since: for how many seconds. closed:
    it has left its guard, as `place` says.
    """

    count: int
    moves: int
    call: int | None
    place: str
    waits: bool
    within: str
    since: float
    host: str
    pid: int
    closed: bool = False


@dataclass(slots=True)
class Sighting:
    """A peer's last sign of life, and times by this rank's clock: when it came (`at`), since when the peer waits at its
    place (`waits`), since when its process is known to be gone (`gone`).
    """

    beat: Beat
    at: float
    waits: float | None = None
    gone: float | None = None


class Clock:
    """Counts the seconds during which a thread was able to look, as it does from time to time: between two looks at
    most `most` seconds count.

    So a machine that stands still for a while, under load or asleep, is not mistaken for a rank that stands still.
    """

    def __init__(self, most: float) -> None:
        self._most, self._last, self.seconds = most, time.monotonic(), 0.0

    def turn(self) -> None:
        """Note that a look happens now."""
        now_s = time.monotonic()
        self.seconds += min(now_s - self._last, self._most)
        self._last = now_s


def state(beat: Beat) -> str:
    """Whether the process of a peer on this host is running, stopped or gone; `unknown` on another host."""
    return process_state(beat.pid) if beat.host == platform.node() else "unknown"


def process_state(pid: int) -> str:
    """Whether a process of this host is `running`, `stopped` or `gone`; `unknown` if the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return "gone" if Path("/proc/self/stat").exists() else "unknown"
    letter = text.rpartition(")")[2].split()[0]
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(letter, "running")
