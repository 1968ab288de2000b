"""The module level: calls of modules by global forward hooks, and paths as in `named_modules`, without wrappers'."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch.nn.modules import module as hooks

from moeparity.evidence.capture.censuses import Censuses
from moeparity.evidence.capture.flush import Running
from moeparity.evidence.capture.gradients import Followed, Gradients
from moeparity.evidence.capture.ops import outputs, plain, tensors
from moeparity.evidence.capture.place import Inside, Places
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.capture.stacks import frames

UNCOUNTED = (
    "torch counts no writes under inference mode, so tensors that a module was given by name, which it may have "
    "overwritten, are not shown: record ops too"
)
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Classes that stand around a module, and the name under which they hold it: it is left out of paths."""


class Paths:
    """The path of every module that was met, from the outermost module that was called."""

    def __init__(self) -> None:
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

    def of(self, module: torch.nn.Module, outer: str | None) -> str:
        """The path of a module that is called inside the module of path `outer`, or inside none."""
        path = self._path_of(module)
        if path is None:
            if outer is None:
                for inner, name in _walk(module, "", set()):
                    self._paths[id(inner)] = weakref.ref(inner), name
                return ""
            path = f"{outer}.({type(module).__name__})" if outer else f"({type(module).__name__})"
            for inner, name in _walk(module, path, set()):
                self._paths[id(inner)] = weakref.ref(inner), name
        return path

    def _path_of(self, module: torch.nn.Module) -> str | None:
        reference = self._paths.get(id(module))
        return reference[1] if reference is not None and reference[0]() is module else None


def _walk(module: torch.nn.Module, path: str, met: set[int]) -> Iterator[tuple[torch.nn.Module, str]]:
    if id(module) in met:
        return
    met.add(id(module))
    yield module, path
    unnamed = _WRAPPERS.get(type(module).__name__)
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, path if name == unnamed else f"{path}.{name}" if path else name, met)


class Modules:
    """Hooks on all modules while it is entered.

    Without the level `module` paths are followed and no calls written; without `op` what a module's own parameters and
    buffers are is written with its calls, since no op shows it.
    """

    def __init__(self, recorder: Recorder, places: Places, censuses: Censuses) -> None:
        self._recorder, self._places, self._censuses = recorder, places, censuses
        levels = recorder.settings.levels
        self._recorded, self._with_weights = "module" in levels, "op" not in levels
        self._gradients = Gradients(recorder) if "gradient" in levels else None
        self._paths = Paths()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Hook all modules."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enters),
            hooks.register_module_forward_hook(self._leaves, with_kwargs=True, always_call=True),
        ]

    def stop(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        if self._gradients is not None:
            self._gradients.stop()

    def _enters(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return
        recorder, places = self._recorder, self._places
        places.passed_op()
        with recorder.apart(f"a call of {type(module).__name__}"):
            modules = places.modules
            path = self._paths.of(module, modules[-1].path if modules else None)
            call = recorder.entered("module", type(module).__name__, path, places.current().phase)
            call.inside = modules[-1].call.id if modules else None
            modules.append(Inside(call, path, module))
            if not recorder.is_on:
                return
            call.clock = recorder.storages.clock
            if not self._recorded:
                return
            if recorder.settings.stacks:
                call.frames = frames()
            for slot, tensor in tensors(args, ""):
                self._see(call.inputs, slot, tensor, call, is_argument=True)
            if self._with_weights:
                for slot, weight in chain(module._parameters.items(), module._buffers.items()):
                    if weight is not None:
                        self._see(call.weights, slot, weight, call)
            call.scalars = {str(place): value for place, value in enumerate(args) if plain(value) is not None}

    def _leaves(self, module: torch.nn.Module, args: tuple[Any, ...], *kwargs_and_result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        # To such a hook torch (2.13, Module._call_impl) hands no keyword arguments where the forward raised.
        has_raised = len(kwargs_and_result) == 1
        kwargs, result = ({}, None) if has_raised else kwargs_and_result
        call = self._places.leave(module)
        if call is None:
            return
        recorder = self._recorder
        if not self._places.modules and not has_raised and recorder.is_on:
            with recorder.apart(f"a census of {call.name}"):
                self._censuses.called(module)
        with recorder.apart(f"a call of {call.name}"):
            if not recorder.is_on or call.clock is None:
                return
            keywords = list(self._unwritten(kwargs, call.clock))
            if self._gradients is not None:
                followed = Followed(call.name, call.path, call.id if self._recorded else None)
                arguments = [*self._unwritten(args, call.clock), *keywords]
                self._gradients.follow(module, followed, arguments, outputs(result))
            if not self._recorded:
                return
            for slot, tensor in keywords:
                self._see(call.inputs, slot, tensor, call, is_argument=True)
            call.scalars |= {name: value for name, value in kwargs.items() if plain(value) is not None}
            for slot, tensor in outputs(result):
                self._see(call.outputs, slot, tensor, call)
            if has_raised:
                call.flags.append("raised")
            recorder.returned(call)

    def _unwritten(self, arguments: Any, clock: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors among a module's arguments that were surely not written since it was entered."""
        for slot, tensor in tensors(arguments, ""):
            if not self._recorder.takes(tensor):
                continue
            if self._recorder.may_have_changed(tensor):
                self._recorder.note(UNCOUNTED)
            elif self._recorder.storages.of(tensor).clock <= clock:
                yield slot, tensor

    def _see(
        self, slots: dict[str, Any], slot: str, tensor: torch.Tensor, call: Running, *, is_argument: bool = False
    ) -> None:
        if self._recorder.takes(tensor):
            slots[slot] = self._recorder.see(tensor, keep=call.keeps, index=is_argument)
