"""Where a program is: in which module, in which phase, in which step; and whose gradient a backward op computes."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any, NamedTuple

import torch

from moeparity.evidence.capture.flush import Running
from moeparity.evidence.capture.recorder import Recorder

_NODES = 1 << 18
"""So many nodes of autograd's graph are remembered with what made them."""


class CallPlace(NamedTuple):
    """The module path, the phase, the call of the module inside which it is, and the call whose gradient it is."""

    path: str
    phase: str
    inside: int | None = None
    forward_call: int | None = None


class Inside(NamedTuple):
    """A module that a thread is inside of: its call, its path, itself."""

    call: Running
    path: str
    module: torch.nn.Module


class _Thread(threading.local):
    """What is true of one thread."""

    def __init__(self) -> None:
        self.modules: list[Inside] = []
        self.optimizers = 0
        self.nodes = 0
        """The number of the next node of autograd's graph, when that was last looked at."""


class Places:
    """Where each thread is."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = _Thread()
        self._nodes: dict[int, tuple[str, int]] = {}
        self._stepped = False
        self.marked = False
        """Whether the program marks its steps by itself."""

    @property
    def modules(self) -> list[Inside]:
        """The modules that this thread is inside of, outermost first."""
        return self._thread.modules

    def leave(self, module: torch.nn.Module) -> Running | None:
        """A module has returned, and with it all that it had called; its call, None where that was not entered."""
        modules = self._thread.modules
        for number in range(len(modules) - 1, -1, -1):
            if modules[number].module is module:
                call = modules[number].call
                del modules[number:]
                return call
        return None

    def current(self) -> CallPlace:
        """Where this thread is."""
        modules = self._thread.modules
        path, inside = (modules[-1].path, modules[-1].call.id) if modules else ("", None)
        node = torch._C._current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            forward_path, forward_call = self._nodes.get(number, ("", None))
            return CallPlace(path or forward_path, "backward", inside, forward_call)
        if self._thread.optimizers:
            return CallPlace(path, "optimizer", inside)
        # What runs when a backward pass ends, as FSDP's last reductions do, is of no node and of that pass.
        return CallPlace(path, "forward" if torch._C._current_graph_task_id() == -1 else "backward", inside)

    def made_nodes(self, call: Running) -> None:
        """Nodes of autograd's graph that were made since the last call belong to this one."""
        if not torch.is_grad_enabled():
            return
        thread, following = self._thread, torch._C._autograd._get_sequence_nr()
        for number in range(max(thread.nodes, following - 64), following):
            self._nodes[number] = call.path, call.id
        thread.nodes = following
        if len(self._nodes) > _NODES:
            for number in list(islice(self._nodes, _NODES // 2)):
                del self._nodes[number]

    def passed_op(self) -> None:
        """Something is computed: where an optimizer has stepped and returned, the next step begins."""
        if self._stepped and not self._thread.optimizers:
            self._stepped = False
            self._recorder.next_step()

    def optimizer_began(self, *_: Any) -> None:
        """An optimizer's step begins."""
        self._thread.optimizers += 1

    def optimizer_ended(self, *_: Any) -> None:
        """An optimizer's step has ended."""
        self._thread.optimizers -= 1
        self._stepped = not self.marked

    def mark(self) -> None:
        """The program says that a step has ended; from now on no optimizer does."""
        self.marked, self._stepped = True, False
        self._recorder.next_step()
