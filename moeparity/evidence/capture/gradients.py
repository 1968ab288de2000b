"""The gradient level: gradients of what modules gave and were given and of their parameters, as they come.

Hooks on tensors look at gradients and leave the graph as it is, so that the program stays what it was. A gradient of
what a module was given is the whole one, summed over all that read it, not over this module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from moeparity.evidence.capture.flush import Running
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.capture.seen import SeenValue, problem

Slotted = Iterable[tuple[str, torch.Tensor]]

_engine: Any = torch.autograd.Variable._execution_engine


class Followed:
    """A call of a module, of whose tensors gradients are awaited. `forward_call`: its number, where it is recorded."""

    __slots__ = ("awaited", "backward", "forward_call", "name", "path")

    def __init__(self, name: str, path: str, forward_call: int | None) -> None:
        self.name, self.path, self.forward_call = name, path, forward_call
        self.awaited = 0
        """How many gradients may come in one backward pass."""
        self.backward: tuple[Running, int] | None = None
        """The call of the pass that goes on, and how many have come in it."""


class Gradients:
    """Records one call for each call of a module whose tensors get gradients, and one for each parameter.

    Such a call has the gradients of the module's outputs as inputs, and those of its inputs as outputs, by their slots.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._open: dict[int, Followed] = {}
        self._parameters: dict[int, Any] = {}

    def stop(self) -> None:
        """Write what is still awaited, and take the hooks of parameters away; those of other tensors end with them."""
        self._pass_ended()
        for handle in self._parameters.values():
            handle.remove()

    def follow(self, module: torch.nn.Module, followed: Followed, arguments: Slotted, results: Slotted) -> None:
        """A module has returned: look at the gradients of these tensors and of its own parameters when they come."""
        if not torch.is_grad_enabled():
            return
        for slots, role in ((results, "inputs"), (arguments, "outputs")):
            for slot, tensor in slots:
                if tensor.requires_grad and problem(tensor) is None:
                    followed.awaited += 1
                    tensor.register_hook(self._hook(followed, role, slot))  # type: ignore[no-untyped-call]
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in self._parameters:
                continue
            if parameter.requires_grad and problem(parameter) is None:
                alone = Followed(f"{type(module).__name__}.{name}", followed.path, None)
                alone.awaited = 1
                handle = parameter.register_hook(self._hook(alone, "outputs", name))  # type: ignore[no-untyped-call]
                self._parameters[id(parameter)] = handle

    def _hook(self, followed: Followed, role: str, slot: str) -> Callable[[torch.Tensor], None]:
        def came(gradient: torch.Tensor) -> None:
            recorder = self._recorder
            if gradient is None or not recorder.is_on or torch.compiler.is_compiling():
                return
            with recorder.apart(f"a gradient of {followed.name}"):
                call, count = followed.backward or (self._began(followed), 0)
                if recorder.takes(gradient):
                    slots: dict[str, SeenValue] = getattr(call, role)
                    slots[slot] = recorder.see(gradient, keep=call.keeps)
                followed.backward = call, count + 1
                if count + 1 == followed.awaited:
                    self._ended(followed, call)

        return came

    def _began(self, followed: Followed) -> Running:
        """The first gradient of a call has come in this pass, at whose end it is written, complete or not."""
        if not self._open:
            _engine.queue_callback(self._pass_ended)
        call = self._recorder.entered("gradient", f"{followed.name}.backward", followed.path, "backward")
        call.forward_call = followed.forward_call
        self._open[call.id] = followed
        return call

    def _ended(self, followed: Followed, call: Running) -> None:
        del self._open[call.id]
        followed.backward = None
        self._recorder.returned(call)

    def _pass_ended(self) -> None:
        with self._recorder.apart("the end of a backward pass"):
            for followed in list(self._open.values()):
                if followed.backward is not None:
                    self._ended(followed, followed.backward[0])
