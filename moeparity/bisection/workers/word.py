"""`--workers`: who computes, as a user writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from moeparity.bisection.workers.crew import Crew
from moeparity.bisection.workers.processes import LocalCrew
from moeparity.errors import MoeparityError, did_you_mean, whole_number
from moeparity.inputs.machine import choose
from moeparity.progress import on_interruption

MOST = 1024
_ADDRESS = re.compile(r"auto|[^:/\s]+:\d{1,5}")


@contextmanager
def crew_of(word: str | int | None, device: str = "auto") -> Iterator[Crew | None]:
    """The workers that a user asked for, gone when the context ends; None where everything is computed here.

    Raises MoeparityError for anything but a number, `ray`, `ray:auto` and `ray:HOST:PORT`, and where none can be had.
    """
    if word is None:
        yield None
        return
    text = str(word)
    kind, colon, address = text.partition(":")
    if kind == "ray" and (not colon or _ADDRESS.fullmatch(address)):
        from moeparity.bisection.workers.cluster import ray_crew

        with_gpu = choose(device).type == "cuda"
        cluster = ray_crew(address or None, torch.get_num_threads(), with_gpu=with_gpu)
        with cluster as ray, on_interruption(ray.dismiss):
            yield ray
        return
    crew = LocalCrew(_count(text))
    with on_interruption(crew.dismiss):
        try:
            yield crew
        finally:
            crew.dismiss()


def _count(text: str) -> int:
    count = whole_number(text)
    if count is None or not 1 <= count <= MOST:
        words = f"a number of processes from 1 to {MOST:,}, ray, ray:auto or ray:HOST:PORT"
        near = did_you_mean(text, ("ray", "ray:auto"))
        raise MoeparityError(f"--workers {text}: expected {words}.{near}")
    return count
