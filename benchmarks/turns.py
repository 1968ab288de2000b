"""Works timed in turn, as multiples of one of them: what else the machine does meets all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import torch

from moeparity.errors import counted
from moeparity.inputs.machine import cpu_name

Work = Callable[[], object]


def header(threads: int) -> str:
    """Day, machine, its load, threads and torch's version."""
    load = f"load average {os.getloadavg()[0]:.1f} at start"
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, {load}, {counted(threads, 'thread')}, torch {torch.__version__}"
    )


def seconds(work: Work) -> float:
    """One call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def settle(device: torch.device) -> None:
    """Wait for what was asked of the device: a GPU works on after a call has returned."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turn(works: Mapping[str, Work], unit: str, repeats: int) -> tuple[dict[str, float], float]:
    """The median over rounds of each work's seconds over those of `unit` in the same round, and `unit`'s best seconds.

    Each round starts with `unit`; one round before, which is not counted, fills caches.
    """
    rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(repeats + 1)][1:]
    medians = {name: statistics.median(times[name] / times[unit] for times in rounds) for name in works}
    return medians, min(times[unit] for times in rounds)
