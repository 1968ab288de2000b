"""A signal that a process gives itself at a certain call of a function: a moment that no sleep could hit."""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Moment:
    """The `call`-th call of a function or method of a module, `before` it is entered or `after` it returns; `midway`
    for one that writes a file: when half of what it writes is there.
    """

    module: str
    name: str
    when: str = "before"
    call: int = 1
    delay: float = 0.0
    """Seconds that the process goes on from there."""

    def __str__(self) -> str:
        later = f", {self.delay:.3f} s later" if self.delay else ""
        return f"{self.when} {self.name}, call {self.call}{later}"


def signal_at(moment: Moment, number: int) -> None:
    """Send this process the signal when that moment comes, once."""
    owner: Any = importlib.import_module(moment.module)
    *path, attribute = moment.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original, calls = getattr(owner, attribute), 0

    def signalled(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != moment.call:
            return original(*args, **kwargs)
        setattr(owner, attribute, original)
        answer = None if moment.when == "before" else original(*args, **kwargs)
        if moment.when == "midway":
            _halve()
        signal_after(moment.delay, number)
        return original(*args, **kwargs) if moment.when == "before" else answer

    setattr(owner, attribute, signalled)


def signal_after(seconds: float, number: int) -> None:
    """Send this process a signal after so many seconds, whatever it does then; after none at once."""
    target = os.getpid()
    if not seconds:
        os.kill(target, number)
    elif os.fork() == 0:
        time.sleep(seconds)
        if os.getppid() == target:
            os.kill(target, number)
        os._exit(0)


def _halve() -> None:
    """Cut every file of this process that is being written to half of its size."""
    for link in Path("/proc/self/fd").iterdir():
        name = link.resolve()
        if name.name.startswith(".moeparity-"):
            os.truncate(name, name.stat().st_size // 2)
