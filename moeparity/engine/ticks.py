"""What a pass reports of its progress: after every node, and during a long one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moeparity.progress import Callback, Progress

LONG = 0.5
"""If a node is not done after this many seconds, progress within it is reported."""


@dataclass(slots=True, kw_only=True)
class Ticks:
    """Reports of one pass through `total` nodes times waves, to `heard` (None: to nobody). `evaluations` counts the op
    evaluations so far; `segment` is where the pass is.
    """

    heard: Callback | None
    total: int
    evaluations: Callable[[], int]
    segment: str = ""
    _done: int = 0
    _told_at: float = field(default_factory=time.monotonic)

    def node(self) -> None:
        """One node of one wave is done."""
        self._done += 1
        self._tell(0.0)

    def within(self, part: float) -> None:
        """The part of the next node that is done, from 0 to 1; reported only if nothing was reported for a while."""
        if self.heard is not None and part < 1 and time.monotonic() - self._told_at >= LONG:
            self._tell(part)

    def _tell(self, part: float) -> None:
        if self.heard is not None:
            self._told_at = time.monotonic()
            report = Progress(
                step="pass",
                at=self.segment,
                done=self._done,
                total=self.total,
                part=part,
                work=self.evaluations(),
                unit="op evaluations",
            )
            self.heard(report)
