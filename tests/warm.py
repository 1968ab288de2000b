"""A process that has loaded what commands and jobs of ranks load, and forks for each: `python -m tests.warm SOCKET`.

Who connects to the socket asks for one: tests/launch.py for a command, tests/command.py for any module with a `main`.
The fork takes over the streams, the folder, the arguments and the variables of whoever asks, runs `main`, and ends as
any Python process does. The answers are the fork's process id, and, when it has ended, its exit code and the time. Once
standard input has ended, forks that are left are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import typer

import moeparity
import moeparity.cli
from moeparity.cli import commands

MOST = 1 << 20
"""Bytes of a request: arguments and variables."""


LEFT_OUT = (
    "moeparity.check.pytest_plugin",
    "moeparity.cli.__main__",
    "moeparity.ranks",
    "moeparity.bisection.real_ranks.run",
    "moeparity.hooks.verl",
    "moeparity.hooks.trl",
)
"""Not loaded: what pytest and frameworks import, a program, what only jobs of several ranks need and takes as long as
torch."""
PROGRAMS = ("tests.ranks.job", "tests.ranks.drawn.subject", "moeparity.bisection.real_ranks.run")
"""What jobs of several ranks need."""


def load() -> None:
    """Load whatever some command loads, with one thread: what is missing, every fork would load again."""
    torch.set_num_threads(1)
    importlib.import_module("jinja2")
    load_packages(moeparity, moeparity.cli)


def load_packages(*packages: ModuleType) -> None:
    """Load all modules of these packages but those that are left out."""
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(LEFT_OUT):
                importlib.import_module(module.name)


def serve(listener: socket.socket) -> str | None:
    """Fork for each request. In the fork, the module that it is to run; None once standard input has ended."""
    events = selectors.DefaultSelector()
    events.register(0, selectors.EVENT_READ)
    events.register(listener, selectors.EVENT_READ)
    asking_of: dict[int, socket.socket] = {}
    while True:
        for key, _ in events.select():
            if key.fd == 0:
                _kill(asking_of)
                return None
            if key.data is not None:
                events.unregister(key.fileobj)
                os.close(key.fd)
                _tell(asking_of.pop(key.data), key.data)
                continue
            asking, _ = listener.accept()
            text, streams, _, _ = socket.recv_fds(asking, MOST, 3)
            child = os.fork()
            if not child:
                asking.close()
                listener.close()
                _close(events, asking_of)
                request = json.loads(text)
                _become(request, streams)
                return str(request["module"])
            for stream in streams:
                os.close(stream)
            asking_of[child] = asking
            events.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            _answer(asking, {"forked": child})


def _tell(asking: socket.socket, child: int) -> None:
    """How a fork that has ended did so, and when."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with asking:
        _answer(asking, {"code": code, "at": time.monotonic()})


def _answer(asking: socket.socket, words: Mapping[str, float]) -> None:
    """Say something to who asks, unless that has ended meanwhile."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        asking.sendall(json.dumps(words).encode(), socket.MSG_NOSIGNAL)


def _kill(children: Mapping[int, socket.socket]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _close(events: selectors.BaseSelector, asking_of: Mapping[int, socket.socket]) -> None:
    """What a fork must not hold open of the process it was forked from."""
    for key in events.get_map().values():
        if key.data is not None:
            os.close(key.fd)
    events.close()
    for asking in asking_of.values():
        asking.close()


def _keep_libraries() -> None:
    """Keep Python, as it ends, from taking apart the modules of libraries, each page of which a fork would copy first.

    What a program has made goes as ever: torch.distributed holds the groups of a job.
    """
    libraries = [
        sys.modules.pop(name)
        for name, module in list(sys.modules.items())
        if "site-packages" in (getattr(module, "__file__", None) or "") and not name.startswith("torch.distributed")
    ]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(libraries))


def _become(request: Mapping[str, Any], streams: list[int]) -> None:
    """Take over what a process has from its parent."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = [request["name"], *request["arguments"]]
    streams_of = dict(zip(request["open"], streams, strict=True))
    for number in range(3):
        if number in streams_of:
            os.dup2(streams_of[number], number)
            os.close(streams_of[number])
        else:
            os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (_text(number, open_=number in streams_of) for number in range(3))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if request["forks"]:
        # All that it starts is one session, and nothing of it is looked through for garbage: tests/uncollected.py.
        os.setsid()
        gc.disable()
        atexit.register(gc.freeze)
    if "MOEPARITY_TESTS_RECORD" in os.environ:
        from tests.tiers.recorder import record_fork

        record_fork()


def _text(number: int, *, open_: bool) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start: None where it is closed."""
    if not open_:
        return None  # type: ignore[return-value]
    errors = "backslashreplace" if number == 2 else "strict"
    mode = "r" if number == 0 else "w"
    buffering = 1 if number == 2 else -1
    stream = open(number, mode, buffering, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    return stream


if __name__ == "__main__":
    # What is loaded stays: neither this process nor a fork that collects garbage need look through it.
    gc.disable()
    # What is registered first is done last.
    atexit.register(_keep_libraries)
    load()
    for _name in PROGRAMS:
        importlib.import_module(_name)
    # The same each time, and it takes longer than most refusals.
    commands.app = typer.main.get_command(commands.app)
    gc.freeze()
    gc.enable()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has one thread only"
    _listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _listener.bind(sys.argv[1])
    _listener.listen(64)
    print("listening", flush=True)
    _module = serve(_listener)
    if _module is not None:
        sys.exit(importlib.import_module(_module).main())
