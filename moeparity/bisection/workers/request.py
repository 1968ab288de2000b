"""Reads `--workers`: who is to compute."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from moeparity.bisection.workers.cluster import ray_crew, refuse_without_ray
from moeparity.bisection.workers.crew import Crew
from moeparity.bisection.workers.processes import LocalCrew
from moeparity.errors import MoeparityError, did_you_mean, whole_number
from moeparity.inputs.machine import choose
from moeparity.progress import on_interruption

MOST = 1024
_RAY = re.compile(r"ray(?::(auto|[^:/\s]+:\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Who is to compute. count: the number of processes on this machine; None: ray, on the cluster at `address`, or
    without one on a cluster of its own here.
    """

    count: int | None
    address: str | None = None


def wanted_workers(word: str | int | None) -> Wanted | None:
    """The workers that a user asked for; None if everything is computed in this process. Starts nothing.

    Raises MoeparityError for anything but a number, `ray`, `ray:auto` and `ray:HOST:PORT`, and if ray is not installed.
    """
    if word is None:
        return None
    text = str(word)
    if match := _RAY.fullmatch(text):
        refuse_without_ray()
        return Wanted(count=None, address=match[1])
    count = whole_number(text)
    if count is None or not 1 <= count <= MOST:
        words = f"a number of processes from 1 to {MOST:,}, ray, ray:auto or ray:HOST:PORT"
        near = did_you_mean(text, ("ray", "ray:auto"))
        raise MoeparityError(f"--workers {text}: expected {words}.{near}")
    return Wanted(count=count)


@contextmanager
def crew_of(wanted: Wanted | None, device: str = "auto") -> Iterator[Crew | None]:
    """The workers that were asked for, ended with the context; None for none. Raises MoeparityError if none can be
    had.
    """
    if wanted is None:
        yield None
    elif wanted.count is None:
        with_gpu = choose(device).type == "cuda"
        cluster = ray_crew(wanted.address, torch.get_num_threads(), with_gpu=with_gpu)
        with cluster as ray, on_interruption(ray.dismiss):
            yield ray
    else:
        crew = LocalCrew(wanted.count)
        with on_interruption(crew.dismiss):
            try:
                yield crew
            finally:
                crew.dismiss()
