"""`moeparity.capture(...)`: a context in which everything that PyTorch computes is written to a trace."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.optim import optimizer

from moeparity.errors import MoeparityError, TraceError, Where
from moeparity.evidence.capture.dispatch import OpMode
from moeparity.evidence.capture.modules import Modules
from moeparity.evidence.capture.place import Places
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.capture.settings import BUDGET, LEVELS, Settings, settings_of
from moeparity.evidence.trace.records import Head
from moeparity.evidence.trace.write import TraceWriter
from moeparity.paths import present

UNSEEN = (
    "What runs in other threads than the one that captures, and in the backward passes it starts, is not recorded.",
    "Inside a kernel that is one op nothing is seen; nor inside a region that torch.compile has compiled.",
    "A write by no op (numpy, a kernel launched by hand) is noticed only where torch's version counts it.",
)


class Capture:
    """A capture that is going on; made by `capture`. Raises TraceError where the folder has a trace already."""

    def __init__(self, folder: Path, settings: Settings, *, program: tuple[str, ...] = ()) -> None:
        self.folder, self.settings = folder, settings
        self._program = program
        self._recorder = Recorder(settings, self._opened)
        self._places = Places(self._recorder)
        self._modules = Modules(self._recorder, self._places, recorded="module" in settings.levels)
        self._mode = OpMode(self._recorder, self._places) if "op" in settings.levels else None
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(whole=kind is None)

    def start(self) -> None:
        """Begin to record. Raises MoeparityError where another capture is going on."""
        if _active:
            raise MoeparityError("capture: another capture is going on in this process. End it first.")
        if any(present(self.folder / f"rank-{rank}") for rank in {_rank()[0]}):
            raise TraceError(f"{Where(self.folder)}: there is something already. Name a folder that is not there.")
        _active.append(self)
        self._modules.start()
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._places.optimizer_began),
            optimizer.register_optimizer_step_post_hook(self._places.optimizer_ended),
        ]
        if self._mode is not None:
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def stop(self, *, whole: bool = True) -> None:
        """End the recording; `whole`: whether the program got to its end."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._modules.stop()
        for handle in self._handles:
            handle.remove()
        self._recorder.close(whole=whole)
        _active.remove(self)

    def step(self) -> None:
        """Say that a step of the program has ended; from now on optimizers don't say so."""
        self._places.mark()

    def flush(self) -> None:
        """Write what was recorded so far."""
        self._recorder.flush()

    def _opened(self) -> TraceWriter:
        rank, ranks = _rank()
        head = Head(
            rank=rank,
            ranks=ranks,
            made_by=f"moeparity {version('moeparity')}",
            program=self._program or tuple(sys.argv),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            levels=self.settings.levels,
            selected=self.settings.save,
            environment=_environment(),
            unseen=UNSEEN,
        )
        return TraceWriter(self.folder, head)


_active: list[Capture] = []


class _Entry:
    """What `moeparity.capture` is: called, it makes a capture; its `step` marks one in whatever capture goes on."""

    def __call__(
        self,
        out: str | Path,
        *,
        level: tuple[str, ...] | str = LEVELS,
        save: tuple[str, ...] | str = (),
        budget: int | str = BUDGET,
        steps: str | None = None,
        rows: bool = True,
        stats: bool = True,
        stacks: bool = True,
    ) -> Capture:
        """A context in which all ops and modules of this thread are recorded in the folder `out`.

        `level`: `op`, `module` or both. `save`: globs of module paths or op names whose whole inputs and outputs are
        kept, up to `budget` bytes. `steps`: `A:B`, which steps are recorded. `rows`, `stats`, `stacks`: whether
        digests of rows, statistics and Python stacks are.

        Raises MoeparityError for a word that says nothing, and TraceError where the folder holds a trace.
        """
        settings = settings_of(
            levels=level, save=save, budget=budget, steps=steps, rows=rows, stats=stats, stacks=stacks
        )
        return Capture(Path(out), settings)

    def step(self) -> None:
        """Say that a step of the program has ended; nothing where no capture is going on."""
        if _active:
            _active[-1].step()


capture = _Entry()


def _rank() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, ranks = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return (int(rank), int(ranks)) if rank.isdecimal() and ranks.isdecimal() else (0, 1)


def _environment() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
    }
