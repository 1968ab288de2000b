"""The dispatch mode: every op that a thread runs, forward, backward, in optimizers, and collectives, passes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from moeparity.evidence.capture.collectives import Collectives, Results
from moeparity.evidence.capture.flush import Running
from moeparity.evidence.capture.ops import Op, op_of, outputs, tensors
from moeparity.evidence.capture.place import Places
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.capture.seen import SeenValue, overrides
from moeparity.evidence.capture.stacks import frames

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SLOTS = [str(place) for place in range(64)]


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops of the thread that entered it, and of the backward passes that it starts."""

    def __init__(self, recorder: Recorder, places: Places) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder, self._places = recorder, places
        self.collectives = Collectives(recorder, self._finished)
        self._ops: dict[Any, Op] = {}

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiles stays compiled: under a mode that says no, torch runs it op by op instead."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an op and record it. What a subclass of tensor is made of is recorded, not the subclass itself, where it
        says by itself what ops do.
        """
        kwargs = kwargs or {}
        for kind in types:
            if kind not in _PLAIN and overrides(kind):
                # Fake tensors hold nothing: DTensor works out shapes with them. And where the program has a mode of its
                # own around this one, torch would pass it by for what this one does not take.
                passes_on = issubclass(kind, FakeTensor) or torch._C._len_torch_dispatch_stack() > 0
                return func(*args, **kwargs) if passes_on else NotImplemented
        op = self._ops.get(func) or self._met(func)
        if op.view or op.silent:
            return func(*args, **kwargs)
        self._places.passed_op()
        if not self._recorder.is_on:
            return func(*args, **kwargs)
        call: Running | None = None
        with self._recorder.apart(op.name):
            call = self._entered(op, args, kwargs)
        if call is None:
            return func(*args, **kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException:
            with self._recorder.apart(op.name):
                call.flags.append("raised")
                self._recorder.returned(call)
            raise
        with self._recorder.apart(op.name):
            self._returned(op, call, args, kwargs, result)
        return result

    def _met(self, func: Any) -> Op:
        """An op that runs for the first time."""
        op = Op(str(func), silent=True)
        with self._recorder.apart(op.name):
            if isinstance(func, HigherOrderOperator):
                self._recorder.note(f"what {op.name} runs, an operator of functions, is not recorded")
            else:
                op = op_of(func)
        self._ops[func] = op
        return op

    def _entered(self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Running:
        recorder, places = self._recorder, self._places
        place = places.current()
        call = recorder.entered("collective" if op.collective else "op", op.name, place.path, place.phase)
        call.inside, call.forward_call = place.inside, place.forward_call
        places.made_nodes(call)
        if recorder.settings.stacks:
            call.frames = frames()
        written = {place for place, _ in op.mutated} if op.fills else {0} if op.waits else ()
        for number, value in enumerate(args):
            if number not in written:
                self._argument(call, _SLOTS[number], value, op)
            elif not op.waits:
                for _, tensor in self._readable(value, ""):
                    self.collectives.overwritten(tensor)
        for name, value in kwargs.items():
            if name != "out":
                self._argument(call, name, value, op)
        return call

    def _argument(self, call: Running, slot: str, value: Any, op: Op) -> None:
        if value is None:
            return
        if isinstance(value, torch.Tensor):
            self._read(call, slot, value, op)
        elif isinstance(value, (list, tuple)) and value and not isinstance(value[0], (int, float)):
            for part, tensor in tensors(value, slot):
                self._read(call, part, tensor, op)
        else:
            call.scalars[slot] = value

    def _read(self, call: Running, slot: str, tensor: torch.Tensor, op: Op) -> None:
        if not self._recorder.takes(tensor):
            return
        if self.collectives.touched(tensor):
            call.flags.append("unwaited")
            return
        call.inputs[slot] = self._recorder.see(tensor, keep=call.keeps, index=op.looks_up)

    def _returned(self, op: Op, call: Running, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        written = [
            part
            for number, name in op.mutated
            for part in (
                self._readable(args[number], _SLOTS[number])
                if number < len(args)
                else self._readable(kwargs.get(name), name)
            )
        ]
        if op.waits:
            self.collectives.awaited(args[0])
        elif op.collective:
            self.collectives.began(call, result, written or self._results(result))
            return
        if op.draws(args, kwargs):
            call.flags.append("random")
        for _, tensor in written:
            self._recorder.storages.wrote(tensor, partly=op.partly)
        for slot, tensor in written:
            # Torch counts a write after the op has returned from here.
            self._note_result(call.written, slot, tensor, call, ahead=True)
        for slot, tensor in self._results(result):
            if op.empty:
                self._recorder.storages.allocated(tensor)
            same = [value for (_, each), value in zip(written, call.written.values(), strict=False) if each is tensor]
            if same:
                call.outputs[slot] = same[0]
            else:
                self._note_result(call.outputs, slot, tensor, call)
        self._recorder.returned(call)

    def _readable(self, value: Any, slot: str) -> Results:
        """The tensors in an argument whose bits can be looked at."""
        return [(part, tensor) for part, tensor in tensors(value, slot) if self._recorder.takes(tensor)]

    def _results(self, result: Any) -> Results:
        """Those in a result."""
        return [(slot, tensor) for slot, tensor in outputs(result) if self._recorder.takes(tensor)]

    def _finished(self, call: Running, results: Results) -> None:
        """A collective was waited for: its results are there."""
        for _, tensor in results:
            self._recorder.storages.wrote(tensor)
        for slot, tensor in results:
            self._note_result(call.outputs, slot, tensor, call)
        self._recorder.returned(call)

    def _note_result(
        self, slots: dict[str, SeenValue], slot: str, tensor: torch.Tensor, call: Running, *, ahead: bool = False
    ) -> None:
        slots[slot] = value = self._recorder.see(tensor, born=True, keep=call.keeps, ahead=ahead)
        if "random" in call.flags and value.label is None:
            value.label = "random"
