"""The progress line: on standard error, and only when that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from moeparity.progress import Callback, Progress, on_interruption

_REFRESH = 0.1
"""Seconds between two updates; earlier reports cost only a look at the clock."""


@contextmanager
def progress_line() -> Iterator[Callback | None]:
    """A context that gives a callback which draws one line, removed at the end; None if nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TaskProgressColumn())
    line = Bar(*columns, console=Console(stderr=True, emoji=False), transient=True, auto_refresh=False)
    with on_interruption(line.stop), line as bar:
        yield Line(bar)


class Line:
    """Draws reports. Rate and remaining time count from the start of a step, also for steps that take turns."""

    def __init__(self, bar: Bar) -> None:
        self.bar, self.task = bar, bar.add_task("starting", total=None)
        self.passes, self.drawn, self.heard = 0, 0.0, time.monotonic()
        self.started: dict[str, float] = {}
        self.done: dict[str, int] = {}

    def __call__(self, progress: Progress) -> None:
        """Draw a report, unless one was drawn a moment ago."""
        clock, step = time.monotonic(), progress.step
        begins = step not in self.started or progress.done < self.done[step]
        if begins:
            self.passes += step == "pass"
            # What is already done in a step's first report was done since the report before.
            self.started[step] = self.heard if progress.done else clock
        self.done[step], self.heard = progress.done, clock
        if begins or clock - self.drawn >= _REFRESH:
            self.drawn = clock
            text = described(progress, self.passes, clock - self.started[step])
            done = progress.done + progress.part
            self.bar.update(self.task, description=text, completed=done, total=progress.total, refresh=True)


def described(progress: Progress, passes: int, seconds: float) -> str:
    """`pass 1, layers[3], 240 op evaluations/s, 1:05 left`; without rate and time as long as there is no basis for
    them.
    """
    step = f"pass {passes}" if progress.step == "pass" else progress.step
    parts = [f"{step}, {progress.at}"]
    done = progress.done + progress.part
    if seconds > 0 and done > 0:
        parts.append(f"{progress.work / seconds:,.0f} {progress.unit}/s")
        minutes, remainder = divmod(round(seconds * (progress.total - done) / done), 60)
        parts.append(f"{minutes}:{remainder:02} left")
    return ", ".join(parts)
