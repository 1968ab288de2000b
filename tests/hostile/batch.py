"""Many commands in one fork of a warm process, one after the other: what a fork costs is paid once for all of them.

A process that dies or hangs has ended the command it was at; the commands behind it go on in a new one.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import typer

import moeparity
from moeparity.cli import commands
from tests.hostile.contract import Ended, Patience, call, console, printed, take_over
from tests.warm import load

_LOOK = 0.5
"""Seconds between two looks at a process that says nothing."""


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command in a folder; what makes the folder, called in the process that runs it; and what is the command."""

    folder: Path
    command: tuple[str, ...]
    prepare: Callable[[], object] = nothing
    act: Callable[[], object] = console


def load_all() -> None:
    """Load every module of moeparity's, so that no fork has to; and have typer make its parser once, and not at every
    call: it is the same each time, and takes longer than most refusals.
    """
    load()
    for module in pkgutil.walk_packages(moeparity.__path__, "moeparity."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    if isinstance(commands.app, typer.Typer):
        commands.app = typer.main.get_command(commands.app)


def run_all(jobs: Sequence[Job]) -> Iterator[Ended]:
    """How each of them ended, in their order."""
    done = 0
    while done < len(jobs):
        for ended in _in_one_process(jobs[done:]):
            done += 1
            yield ended


def _in_one_process(jobs: Sequence[Job]) -> Iterator[Ended]:
    """As many as one process gets done."""
    with tempfile.TemporaryFile(buffering=0) as output, tempfile.TemporaryFile(buffering=0) as errors:
        streams = output, errors
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_each(jobs, streams, writer)
        os.close(writer)
        done, hangs = 0, False
        try:
            with open(reader, "rb", buffering=0) as answers:  # noqa: PTH123
                for answer in _answers(child, answers):
                    done += 1
                    yield answer
        except TimeoutError:
            hangs = True
        finally:
            # Also where nobody wants the rest. A process that has begun to end keeps its own exit code.
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        if done < len(jobs):
            yield Ended(None if hangs else os.waitstatus_to_exitcode(status), *printed(streams))


def _run_each(jobs: Sequence[Job], streams: tuple[IO[bytes], IO[bytes]], writer: int) -> None:
    """The forked child. Never returns."""
    try:
        take_over(streams)
        with open(writer, "wb", buffering=0) as answers:
            for job in jobs:
                job.prepare()
                code = call(job.command, job.folder, job.act)
                answers.write(json.dumps([code, *printed(streams)]).encode() + b"\n")
    except BaseException:  # noqa: BLE001  seen by who reads what it printed
        traceback.print_exc()
    finally:
        os._exit(1)


def _answers(child: int, stream: IO[bytes]) -> Iterator[Ended]:
    """What a child tells, until it ends. Raises TimeoutError where it hangs."""
    rest, patience = b"", Patience(child)
    while patience.lasts():
        if not select.select([stream], [], [], _LOOK)[0]:
            continue
        text = os.read(stream.fileno(), 1 << 20)
        if not text:
            return
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            code, output, errors = json.loads(line)
            yield Ended(code, output, errors)
        patience = Patience(child)
    raise TimeoutError
