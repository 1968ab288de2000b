"""The work of a worker: it prepares the same study as the command, refuses if it can't, and computes."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from moeparity.bisection.measures import codec
from moeparity.bisection.observe import Observation
from moeparity.bisection.observed import ShardPart
from moeparity.bisection.pipeline import bisected, first_toggles
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.bisection.resume.fingerprint import parts
from moeparity.bisection.study import Study
from moeparity.bisection.workers.message import (
    DONE,
    FAILED,
    REFUSED,
    TASKS,
    Job,
    PointTask,
    ShardTask,
    Task,
    functions_of,
    packed,
    unpacked,
)
from moeparity.bisection.workers.sharded_pass import shard_part, shards_of, taken_apart
from moeparity.errors import MoeparityError, listed
from moeparity.inputs.machine import choose, numerics_key, set_precision
from moeparity.inputs.model import OpenedOnce
from moeparity.progress import Callback, Progress

UNCOMPARED = ("machine", "functions")
"""Parts of a study whose hashes may differ in a worker, since their contents are compared one by one."""


class RefusedError(Exception):
    """This worker may not compute for a command; the message says why."""


class Server:
    """Answers the tasks of one command; a study is prepared once and used again for tasks of the same job."""

    def __init__(self) -> None:
        self._opener = OpenedOnce()
        self._job: Job | None = None
        self._study: Study | None = None

    def answer(self, message: bytes, on_part: Callable[[float], None] | None = None) -> bytes:
        """The answer to a task; `on_part` is told how much of it is done, from 0 to 1."""
        try:
            task: Task = unpacked(TASKS, message)
            return DONE + self._computed(task, None if on_part is None else _Heard(on_part))
        except RefusedError as error:
            return REFUSED + str(error).encode()
        except MoeparityError as error:
            return FAILED + json.dumps([type(error).__name__, str(error)]).encode()
        except Exception as error:  # noqa: BLE001  the command tells it
            frame = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{error} ({frame.filename}:{frame.lineno})"
            return FAILED + json.dumps([type(error).__name__, words]).encode()

    def _computed(self, task: Task, progress: Callback | None) -> bytes:
        study = self._prepared(task.job)
        writer = codec(study.model.graph, Report)
        if isinstance(task, PointTask):
            return packed(writer, bisected(study, progress=progress))
        return packed(writer, _shard(study, task, progress))

    def _prepared(self, job: Job) -> Study:
        if (
            self._study is None
            or self._job is None
            or packed(TASKS, PointTask(job=job)) != packed(TASKS, PointTask(job=self._job))
        ):
            self._study, self._job = _prepared(job, self._opener), job
        return self._study


def _shard(study: Study, task: ShardTask, progress: Callback | None) -> ShardPart:
    first = not task.parents
    study, toggles = (study, first_toggles(study)) if first else taken_apart(study, task.parents)
    shards = shards_of(Observation.of(study, toggles, first=first))
    shard = next(shard for shard in shards if (shard.first, shard.last) == (task.first, task.last))
    return shard_part(study, toggles, shard, first=first, progress=progress)


def _prepared(job: Job, opener: OpenedOnce) -> Study:
    """The study of a job. Raises RefusedError if it differs from the command's."""
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise RefusedError(
            f"{job.folder}: {error.strerror}; a worker reads the recipe's files at the same paths"
        ) from None
    torch.set_num_threads(min(job.threads, len(os.sched_getaffinity(0))))
    for name, precision in job.precisions.items():
        set_precision(name, precision)
    refuse_other(job.machine, numerics_key(choose(job.device)))
    study = prepare(Path(job.recipe), device=job.device, options=job.options, opener=opener)
    study = study if job.tokens is None else study.on(job.tokens)
    own_parts = parts(study)
    others = [name for name, digest in job.parts.items() if name not in UNCOMPARED and own_parts.get(name) != digest]
    others += [call for call, digest in functions_of(study).items() if job.functions.get(call) != digest]
    if others:
        raise RefusedError(f"on this machine these are others than where the command runs: {listed(others)}")
    return study


def refuse_other(job_parts: Mapping[str, str], own_parts: Mapping[str, str]) -> None:
    """Raises RefusedError for a machine or settings that may give other bits."""
    others = [
        f"{name} {own_parts.get(name, 'unknown')}, not {value}"
        for name, value in job_parts.items()
        if own_parts.get(name) != value
    ]
    if others:
        raise RefusedError(f"it may compute other bits than the command: {'; '.join(others)}")


class _Heard:
    """Turns a pass's progress into one number."""

    def __init__(self, on_part: Callable[[float], None]) -> None:
        self._on_part = on_part

    def __call__(self, progress: Progress) -> None:
        if progress.step == "pass" and progress.total:
            self._on_part((progress.done + progress.part) / progress.total)
