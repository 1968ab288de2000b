"""A process that has loaded what commands load, and forks for each command: `python -m tests.warm SOCKET`.

`tests/launch.py SOCKET ARGUMENTS` asks it to. The fork takes over the streams, the folder and the variables of whoever
asks, runs the console script, and ends as any Python process does. It answers with the exit code. It ends when its
standard input does.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import moeparity
import moeparity.cli

MOST = 1 << 20
"""Bytes of a request: arguments and variables."""


LEFT_OUT = (
    "moeparity.check.pytest_plugin",
    "moeparity.cli.__main__",
    "moeparity.ranks",
    "moeparity.bisection.real_ranks.run",
)
"""pytest's own, a program, and what takes as long to load as torch and only jobs of several ranks need."""


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


def serve(listener: socket.socket) -> bool:
    """Fork for each request. True in the fork, which is to run the command; False once standard input has ended."""
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready:
            return False
        asking, _ = listener.accept()
        with asking:
            text, streams, _, _ = socket.recv_fds(asking, MOST, 3)
            child = os.fork()
            if not child:
                asking.close()
                listener.close()
                _become(json.loads(text), streams)
                return True
            for stream in streams:
                os.close(stream)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            asking.sendall(str(code).encode())


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take over what a process has from its parent."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = ["moeparity", *request["arguments"]]
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


def _text(number: int, *, open_: bool) -> io.TextIOWrapper:
    """A standard stream as Python makes it at its start: None where it is closed."""
    if not open_:
        return None  # type: ignore[return-value]
    errors = "backslashreplace" if number == 2 else "strict"
    mode = "r" if number == 0 else "w"
    stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    return stream


if __name__ == "__main__":
    # What is loaded stays: neither this process nor a fork that collects garbage need look through it.
    gc.disable()
    load()
    gc.freeze()
    gc.enable()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has one thread only"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as _listener:
        _listener.bind(sys.argv[1])
        _listener.listen()
        print("listening", flush=True)
        _forked = serve(_listener)
    if _forked:
        from moeparity.cli import main

        main()
