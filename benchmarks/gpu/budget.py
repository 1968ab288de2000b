"""The seconds a part has: it looks between two cases, and says which it had no time for."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Time until `deadline`, in seconds of the monotonic clock, which on Linux all processes share."""

    deadline: float

    @classmethod
    def of(cls, seconds: float) -> Budget:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def spent(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self.deadline
