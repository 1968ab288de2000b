"""What a capture does for itself inside a program: one thing at a time, unseen by the program, and never its end.

Modes, subclasses of tensors and transforms of the program see no op of the capture's own: neither counts, nor traces,
nor moves it to another device. What fails there becomes a note, and the program goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from moeparity.errors import MismatchError

_peek: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
_NoDispatch: Callable[[], Any] = torch._C._DisableTorchDispatch
_NoFunction: Callable[[], Any] = torch._C.DisableTorchFunction


def unseen_by_program(guards: ExitStack) -> None:
    """From now on, until the guards are closed, modes, subclasses and transforms of the program see no op."""
    guards.enter_context(_NoFunction())
    guards.enter_context(_NoDispatch())
    if _peek() is not None:
        guards.enter_context(temporarily_clear_interpreter_stack())


class Apart:
    """A context for what a capture does for itself while it handles what `label` says; it ends early where that fails.

    `failed` is told the label and the error. Only a MismatchError goes on to the program, which is to stop there.
    """

    __slots__ = ("_failed", "_guards", "_label", "_lock")

    def __init__(self, lock: threading.RLock, failed: Callable[[str, str], None], label: str) -> None:
        self._lock, self._failed, self._label = lock, failed, label

    def __enter__(self) -> None:
        self._lock.acquire()
        self._guards = ExitStack()
        unseen_by_program(self._guards)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            self._guards.close()
            if kind is None or not issubclass(kind, Exception) or issubclass(kind, MismatchError):
                return False
            self._failed(self._label, f"{kind.__name__}: {error}".splitlines()[0][:200])
            return True
        finally:
            self._lock.release()
