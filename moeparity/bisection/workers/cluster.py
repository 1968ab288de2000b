"""Workers of a ray cluster (`--workers ray`): a cluster of its own on this machine, or one that is already running."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from moeparity.bisection.resume.fingerprint import variables
from moeparity.bisection.workers.crew import Crew, LostWorkerError, Worker
from moeparity.bisection.workers.message import SERVE
from moeparity.errors import MoeparityError

_ASKED = 1.0
"""Seconds between two questions about progress."""
_REACHED = 5.0
"""Seconds within which a cluster has to answer at its address."""


class Actor:
    """The class that ray runs in a worker's process. It is found by its name, so moeparity has to be installed
    there.
    """

    def __init__(self) -> None:
        self._server, self._part = import_module(SERVE).Server(), 0.0

    def answer(self, message: bytes) -> bytes:
        """The answer to a task."""
        answer: bytes = self._server.answer(message, self._note_part)
        return answer

    def part(self) -> float:
        """How much of the current task is done, from 0 to 1."""
        return self._part

    def number(self) -> int:
        """The process's id."""
        return os.getpid()

    def _note_part(self, part: float) -> None:
        self._part = part


class _RayWorker:
    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor

    def ask(self, message: bytes, on_part: Callable[[float], None]) -> bytes:
        """The answer to a task. Raises LostWorkerError."""
        try:
            answer = self.actor.answer.remote(message)
            while not self.ray.wait([answer], timeout=_ASKED)[0]:
                with suppress(self.ray.exceptions.GetTimeoutError):
                    on_part(self.ray.get(self.actor.part.remote(), timeout=_ASKED))
            data: bytes = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            raise LostWorkerError(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}") from None
        return data

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(self.actor)


class RayCrew(Crew):
    """As many workers as the cluster has cores for; each takes as many cores as a pass has threads."""

    def __init__(self, ray: Any, threads: int, *, with_gpu: bool) -> None:
        self._ray = ray
        there = ray.cluster_resources()
        count = max(1, int(there.get("CPU", 1)) // threads)
        super().__init__(max(1, min(count, int(there.get("GPU", 0)))) if with_gpu else count)
        # Two calls at a time: one computes, one reports progress. Without restarts, since the crew itself replaces
        # workers.
        options = {"num_cpus": threads, "num_gpus": int(with_gpu), "max_concurrency": 2, "max_restarts": 0}
        self._actor = ray.remote(Actor).options(**options, max_task_retries=0)

    def begin(self) -> Worker:
        """A new worker, as soon as the cluster has enough free cores."""
        try:
            return _RayWorker(self._ray, self._actor.remote())
        except self._ray.exceptions.RayError as error:
            raise MoeparityError(f"--workers: ray starts no worker: {error}. Look at `ray status`.") from None


@contextmanager
def ray_crew(address: str | None, threads: int, *, with_gpu: bool) -> Iterator[RayCrew]:
    """The workers of the cluster at an address. `auto`: the one that this machine belongs to; None: a cluster of its
    own here, which ends with the context. Raises MoeparityError if no cluster is at the address.
    """
    _refuse_unreachable(address)
    # No usage statistics are sent to ray's authors.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        _connect(ray, address)
        _restore(handlers)
        crew = RayCrew(ray, threads, with_gpu=with_gpu)
        try:
            yield crew
        finally:
            crew.dismiss()
    finally:
        ray.shutdown()
        _restore(handlers)


def refuse_without_ray() -> None:
    """Raises MoeparityError if ray is not installed."""
    if find_spec("ray") is None:
        raise MoeparityError(
            "--workers ray: ray is not installed. `pip install 'moeparity[ray]'`, or give a number of processes of "
            "this machine, such as --workers 2."
        )


def _connect(ray: Any, address: str | None) -> None:
    settings = {"env_vars": {**variables(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
    dashboard = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address="local" if address is None else address,
            runtime_env=settings,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **dashboard,
        )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        reason = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
        name = "ray" if address is None else f"ray:{address}"
        raise MoeparityError(
            f"--workers {name}: {reason or type(error).__name__}. Start a cluster with `ray start --head` (one that "
            "asks for a token takes RAY_AUTH_MODE=token here), or write --workers ray for one of its own."
        ) from None


def _refuse_unreachable(address: str | None) -> None:
    """Raises MoeparityError early, since ray itself tries for minutes and may end the process."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED).close()
    except OSError as error:
        raise MoeparityError(
            f"--workers ray:{address}: nothing answers there ({error.strerror or error}). Expected the address that "
            "`ray start --head` prints, such as ray:10.0.0.1:6379, or ray:auto on a machine of the cluster."
        ) from None


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Put the command's signal handlers back, which ray replaces with its own."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)
