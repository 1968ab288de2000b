"""`moeparity.capture(...)`: a context in which everything that PyTorch computes is written to a trace."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import torch
from torch.optim import optimizer

from moeparity.errors import MoeparityError, TraceError, Where
from moeparity.evidence.capture.background import Background
from moeparity.evidence.capture.censuses import Censuses
from moeparity.evidence.capture.compiled import compiled_functions
from moeparity.evidence.capture.dispatch import OpMode
from moeparity.evidence.capture.flush import Sink
from moeparity.evidence.capture.modules import Modules
from moeparity.evidence.capture.place import Places
from moeparity.evidence.capture.recorder import SOON, Recorder
from moeparity.evidence.capture.served import Served
from moeparity.evidence.capture.settings import CaptureSettings, Words, settings_of
from moeparity.evidence.capture.verify.comparison import Tolerance
from moeparity.evidence.capture.verify.verifier import Verification, Verifier
from moeparity.evidence.trace.reader import open_trace
from moeparity.evidence.trace.records import Head
from moeparity.evidence.trace.writer import TraceWriter
from moeparity.hooks import vllm
from moeparity.paths import present


def _version() -> str:
    """Of moeparity; where the program runs in an environment that it is not installed in, nobody says."""
    try:
        return version("moeparity")
    except PackageNotFoundError:
        return "of another environment"


ELSEWHERE = (
    "nothing is recorded here: the model of this program's vLLM engine runs in other processes. Record them with "
    "`moeparity capture -- python ...`, or set VLLM_ENABLE_V1_MULTIPROCESSING=0."
)
UNSEEN = (
    "What runs in other threads than the one that captures, and in the backward passes it starts, is not recorded.",
    "Inside a kernel that is one op nothing is seen.",
    "Modules in a region that torch.compile has compiled are not seen, nor kernels that its compiler made.",
    "A write by no op (numpy, a kernel launched by hand) is noticed only where torch's version counts it.",
)


class Capture:
    """A capture that is going on; made by `capture`.

    `folder`: where its trace goes, None for none. `verification`: what it is held to. `started`: whether it was
    started with the program, whose processes may not know their ranks yet.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: CaptureSettings,
        *,
        program: tuple[str, ...] = (),
        verification: Verification | None = None,
        started: bool = False,
    ) -> None:
        if verification is not None and verification.tolerance and not settings.save:
            settings = _keeping_what_is_recorded(settings, verification, held_only=folder is None)
        self.folder, self.settings = folder, settings
        self.verifier: Verifier | None = None
        self._program, self._verification, self._started = program, verification, started
        self._recorder = Recorder(settings, self._opened, self._knows_its_rank, self._compiled)
        self._has_warned = False
        self._places = Places(self._recorder)
        self._trace: Path | None = None
        self._censuses = Censuses(self._recorder, lambda: self._trace)
        self._modules = Modules(self._recorder, self._places, self._censuses)
        self._mode = OpMode(self._recorder, self._places) if "op" in settings.levels else None
        self._background = Background(self._recorder)
        self._served = Served(self._recorder, self._places)
        self._handles: list[Any] = []
        self._process = os.getpid()
        self._thread: int | None = None
        self._of_thread = threading.local()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(whole=kind is None)

    def start(self) -> None:
        """Begin to record.

        Raises MoeparityError where another capture is going on, TraceError where the folder has a trace already or
        there is none to be held to.
        """
        if _active:
            raise MoeparityError("capture: another capture is going on in this process. End it first.")
        if self._verification is not None:
            open_trace(self._verification.recorded)
            self._recorder.most_calls = SOON if self._verification.stop else self._recorder.most_calls
        if self.folder is not None and not self._started and present(self.folder / f"rank-{_rank()[0]}"):
            raise TraceError(f"{Where(self.folder)}: there is something already. Name a folder that is not there.")
        _active.append(self)
        self._modules.start()
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(self._optimizer_begins),
            optimizer.register_optimizer_step_post_hook(self._places.optimizer_ended),
        ]
        vllm.watch(self._served)
        self._background.start()
        if self._mode is not None:
            self._mode.collectives.start()
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._thread = threading.get_ident()
            if threading.current_thread() is not threading.main_thread():
                self._recorder.note("the capture began in another thread than the main one: ops of that thread alone")
                self._of_thread.end = _AtEnd(self._leave)

    def stop(self, *, whole: bool = True) -> None:
        """End the recording; `whole`: whether the program got to its end. Nothing in a forked process."""
        if os.getpid() != self._process:
            return
        try:
            if self._mode is not None:
                self._leave()
                self._mode.collectives.stop()
            self._modules.stop()
            for handle in self._handles:
                handle.remove()
            vllm.WATCHERS.remove(self._served)
            self._background.stop()
            with self._recorder.apart("the last census"):
                self._censuses.stop()
            self._recorder.close(whole=whole)
            with self._recorder.apart("the last census"):
                self._censuses.write()
            if self._recorder.is_elsewhere and not self._started:
                sys.stderr.write(f"moeparity capture: {ELSEWHERE}\n")
        finally:
            _active.remove(self)

    def _leave(self) -> None:
        """Take the mode from torch's stack of modes in the thread that has it, nothing in another.

        A program may import torch in a thread of its own, which ends before the program does. Left there, the mode is
        freed by C++ once Python has forgotten the thread, and where Python is ending just then, that ends in abort().
        """
        if self._mode is not None and threading.get_ident() == self._thread:
            self._thread = None
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def fork(self) -> None:
        """In a forked process: it records nothing, since the trace is its parent's."""
        self._recorder.switch_off()

    def step(self) -> None:
        """Say that a step of the program has ended; from now on optimizers don't say so."""
        self._places.mark()

    def flush(self) -> None:
        """Write what was recorded so far."""
        self._recorder.flush()

    def _optimizer_begins(self, *_: Any) -> None:
        if self._mode is not None:
            self._mode.collectives.take_gradients()
        self._places.optimizer_began()

    def _compiled(self) -> Sequence[str]:
        """What to say of functions that torch has compiled; the first is told to whoever runs the program, too."""
        notes = [f"torch.compile has compiled {each}: where that ran, see `unseen`" for each in compiled_functions()]
        if notes and not self._has_warned:
            self._has_warned = True
            sys.stderr.write(f"moeparity capture: {notes[0]} in the head of the trace\n")
        return notes

    def _knows_its_rank(self) -> bool:
        """Whether the rank won't change any more: a process that another started may still join a group."""
        distributed = torch.distributed
        return (
            multiprocessing.parent_process() is None
            or "RANK" in os.environ
            or (distributed.is_available() and distributed.is_initialized())
        )

    def _opened(self) -> Sequence[Sink]:
        rank, ranks = _rank()
        sinks: list[Sink] = []
        if self.folder is not None:
            writer = self._writer(self.folder, rank, ranks)
            rank, self._trace = writer.rank, writer.folder
            sinks.append(writer)
        if self._verification is not None:
            self.verifier = Verifier(self._verification, rank, self._recorder.stop_with)
            sinks.append(self.verifier)
        return sinks

    def _writer(self, folder: Path, rank: int, ranks: int) -> TraceWriter:
        head = Head(
            rank=rank,
            ranks=ranks,
            made_by=f"moeparity {_version()}",
            program=self._program or tuple(sys.argv),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            levels=self.settings.levels,
            selected=self.settings.save,
            environment=_environment(),
            unseen=UNSEEN,
        )
        # Processes of one program that are in no group have no ranks: they are numbered as they come.
        while self._started and present(folder / f"rank-{head.rank}"):
            head = replace(head, rank=head.rank + 1)
        writer = TraceWriter(folder, head)
        if head.rank != rank:
            writer.note(f"this process was in no group of ranks: {head.rank} is only the order in which it came")
        return writer


class _AtEnd:
    """Calls a function when the thread that has this in a `threading.local` ends, in that thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


_active: list[Capture] = []


def _forked() -> None:
    while _active:
        _active.pop().fork()


os.register_at_fork(after_in_child=_forked)


class _Entry:
    """What `moeparity.capture` is: called, it makes a capture; its `step` marks one in whatever capture goes on."""

    def __call__(
        self,
        out: str | Path | None = None,
        *,
        verify: str | Path | None = None,
        stop: bool = False,
        rtol: float = 0.0,
        atol: float = 0.0,
        **words: Unpack[Words],
    ) -> Capture:
        """A context in which all ops and modules of this thread are recorded in the folder `out`.

        `level`: some of `op`, `module` (both by default) and `gradient`. `save`: globs of module paths or op names
        whose whole inputs and outputs are kept, up to `budget` bytes; whole numbers of at most 1 MiB that a module is
        given always are. `steps`: `A:B`, which steps are recorded. `rows`, `stats`, `stacks`: whether digests of rows,
        statistics and Python stacks are.
        `verify`: a trace that the program is held to, by bits, or within `rtol` of the recorded and `atol`: each
        element of what the record has whole, min, max, mean and absmax of the rest, which is no bound of its elements;
        the context's `verifier.report` has what came of it, and with `stop` the program ends at the first difference.

        Raises MoeparityError for a word that says nothing, TraceError where the folder holds a trace or `verify` names
        none, and MismatchError as `stop` asks.
        """
        settings = settings_of(**words)
        if out is None and verify is None:
            raise MoeparityError("capture: neither a folder to write to nor a trace to verify is given. Give one.")
        verification = None
        if verify is not None:
            verification = Verification(Path(verify), Tolerance(rtol, atol), stop)
        return Capture(None if out is None else Path(out), settings, verification=verification)

    def step(self) -> None:
        """Say that a step of the program has ended; nothing where no capture is going on."""
        if _active:
            _active[-1].step()


capture = _Entry()


def _keeping_what_is_recorded(
    settings: CaptureSettings, verification: Verification, *, held_only: bool
) -> CaptureSettings:
    """Settings that keep whole what the record has whole, so that a tolerance can hold for elements."""
    selected = open_trace(verification.recorded).ranks[0].head.selected
    return replace(settings, save=selected, budget=sys.maxsize if held_only else settings.budget)


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
