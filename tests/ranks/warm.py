"""A process that has imported torch, and forks for each rank of a job: `python -m tests.ranks.warm`.

It is asked over the socket that is its standard input: `launch.py`. A fork takes over two streams, the arguments and
the variables, runs the program, and ends as any Python process does. Its exit code is told when it has ended. When the
other end is closed, forks that are left are killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST = 1 << 20
"""Bytes of a request: arguments and variables."""
PROGRAMS = ("tests.ranks.job", "tests.ranks.drawn.subject")
"""Modules with a `main` that ranks run; what they import is imported once."""


def serve(requests: socket.socket) -> str | None:
    """Fork for each request. In the fork, the module that it is to run; None once nobody can ask any more."""
    events = selectors.DefaultSelector()
    events.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.data is not None:
                events.unregister(key.fileobj)
                code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                os.close(key.fd)
                requests.sendall(json.dumps({"pid": key.data, "code": code, "at": time.monotonic()}).encode())
                continue
            text, streams, _, _ = socket.recv_fds(requests, MOST, 2)
            if not text:
                _kill([each.data for each in events.get_map().values() if each.data is not None])
                return None
            request = json.loads(text)
            child = os.fork()
            if not child:
                _close(events, requests)
                _become(request, streams)
                return str(request["module"])
            for stream in streams:
                os.close(stream)
            events.register(os.pidfd_open(child), selectors.EVENT_READ, child)
            requests.sendall(json.dumps({"forked": child}).encode())


def _kill(children: list[int]) -> None:
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _close(events: selectors.BaseSelector, requests: socket.socket) -> None:
    """What a rank must not hold open of the process it was forked from."""
    for key in list(events.get_map().values()):
        if key.data is not None:
            os.close(key.fd)
    events.close()
    requests.close()


def _become(request: Mapping[str, Any], streams: list[int]) -> None:
    """Take over what a process has from its parent."""
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = [request["module"], *request["arguments"]]
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, *streams)):
        os.dup2(stream, number)
        os.close(stream)


if __name__ == "__main__":
    # What is loaded stays: neither this process nor a fork that collects garbage need look through it.
    gc.disable()
    for _name in PROGRAMS:
        importlib.import_module(_name)
    gc.freeze()
    gc.enable()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork has one thread only"
    _socket = socket.socket(fileno=os.dup(0))
    _socket.sendall(b"warm")
    _module = serve(_socket)
    if _module is not None:
        importlib.import_module(_module).main()
