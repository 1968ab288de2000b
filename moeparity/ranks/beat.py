"""Signs of life, and what the operating system says of a process that gives none."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path

LOST = {"gone": "was killed", "stopped": "is stopped"}
"""States in which a process gives no sign of life any more, in words."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One sign of life. `moves`: how many places the rank came to. `call`: the last call it finished. `place`: where
    the rank is, in words. `waits`: it waits for others there. `within`: in a collective of this group. `since`: for
    how many seconds. `closed`: it has left its guard, as `place` says.
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
    """A peer's last sign of life, when it came, since when the peer waits where it is, and since when its process has
    been seen to be gone; by the clock of who saw it.
    """

    beat: Beat
    at: float
    waits: float | None = None
    gone: float | None = None


class Clock:
    """Seconds in which somebody who looks every now and then did look: of each turn that comes late, `most` count.

    A machine that stands still for a while, under load or asleep, is no rank that does.
    """

    def __init__(self, most: float) -> None:
        self._most, self._last, self.seconds = most, time.monotonic(), 0.0

    def turn(self) -> None:
        """It is looked now."""
        now_s = time.monotonic()
        self.seconds += min(now_s - self._last, self._most)
        self._last = now_s


def state(beat: Beat) -> str:
    """Whether the process of a peer on this host runs, is stopped or gone; `unknown` on another host."""
    return process_state(beat.pid) if beat.host == platform.node() else "unknown"


def process_state(pid: int) -> str:
    """Whether a process of this host is `running`, `stopped` or `gone`; `unknown` where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return "gone" if Path("/proc/self/stat").exists() else "unknown"
    letter = text.rpartition(")")[2].split()[0]
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(letter, "running")
