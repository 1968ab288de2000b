"""What a pass tells of how far it is: of every node, and of a long one while it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moeparity.progress import Callback, Progress

LONG = 0.5
"""Seconds after which a node that is not done is told of."""


@dataclass(slots=True, kw_only=True)
class Ticks:
    """Reports of one pass through `total` nodes times waves, to `heard` (None: to nobody).

    `evaluations` tells how many op evaluations are done, `segment` is where the pass is.
    """

    heard: Callback | None
    total: int
    evaluations: Callable[[], int]
    segment: str = ""
    _done: int = 0
    _told_at: float = field(default_factory=time.monotonic)

    def node(self) -> None:
        """A node of a wave is done."""
        self._done += 1
        self._tell(0.0)

    def within(self, part: float) -> None:
        """So much of the next node is done, from 0 to 1; told where nothing was for a while."""
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
