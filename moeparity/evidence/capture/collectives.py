"""Collectives: what they give is taken when it is waited for, since until then it may be any bits.

A `Work` of c10d is waited for in Python, by DDP in C++, or never; the results of functional collectives by
`wait_tensor`. What is read before, and is finished by then, is taken at that moment; what is not is flagged `unwaited`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from moeparity.evidence.capture.flush import Running
from moeparity.evidence.capture.recorder import Recorder

Results = list[tuple[str, torch.Tensor]]


class Flying:
    """A collective that was begun and not yet waited for."""

    __slots__ = ("_future", "call", "clock", "is_awaited", "results", "work")

    def __init__(self, call: Running, results: Results, work: Any, clock: int) -> None:
        self.call, self.results, self.work = call, results, work
        self._future = _future_of(work) if all(tensor.is_cpu for _, tensor in results) else None
        self.clock = clock
        """The count of writes when it was begun: what was written since is another value."""
        self.is_awaited = False
        """Whether the program waits for it now: some backends write its results in the wait."""

    @property
    def is_finished(self) -> bool:
        """Whether its results are there, as far as that can be asked.

        DDP waits for the future of a Work, which gloo ends before it says of the Work that it is completed. An
        accelerator's future ends when its kernels are queued, and says nothing.
        """
        if self._future is not None and self._future.done():
            return True
        return self.work is not None and bool(self.work.is_completed())


class Collectives:
    """The collectives of a rank that are under way. `finished` takes the results of one."""

    def __init__(self, recorder: Recorder, finished: Callable[[Running, Results], None]) -> None:
        self._recorder, self._finished = recorder, finished
        self._flying: dict[int, Flying] = {}
        self._wait: Callable[..., Any] | None = None

    def start(self) -> None:
        """Hear of it when a program waits."""
        if not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import Work

        self._wait = original = Work.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            awaited = self._awaited(work)
            try:
                outcome = original(work, *args, **kwargs)
            finally:
                for flying in awaited:
                    flying.is_awaited = False
            self._waited_for(awaited)
            return outcome

        Work.wait = wait  # type: ignore[method-assign, assignment]

    def stop(self) -> None:
        """Take what has finished; the rest is written without results."""
        for flying in set(self._flying.values()):
            self._land(flying)
        if self._wait is not None:
            from torch._C._distributed_c10d import Work

            Work.wait = self._wait  # type: ignore[method-assign]

    def began(self, call: Running, result: Any, results: Results) -> None:
        """A collective has been started; `results`: the tensors that it will have written when it is waited for."""
        flying = Flying(call, results, _work_of(result), self._recorder.storages.clock)
        for _, tensor in results:
            self._flying[tensor.untyped_storage()._cdata] = flying
        if not results:
            self._recorder.returned(call)

    def _awaited(self, work: Any) -> set[Flying]:
        """A program begins to wait for a Work: what is written to its results from now on is its own."""
        with self._recorder.lock:
            awaited = {each for each in self._flying.values() if each.work is work and not self._is_overwritten(each)}
            for flying in awaited:
                flying.is_awaited = True
        return awaited

    def _waited_for(self, awaited: set[Flying]) -> None:
        """A program has waited for these."""
        with self._recorder.apart("a collective"):
            for flying in awaited & set(self._flying.values()):
                flying.clock = self._recorder.storages.clock
                self._take(flying)

    def awaited(self, tensor: torch.Tensor) -> None:
        """A program has waited for a tensor."""
        flying = self._flying.get(tensor.untyped_storage()._cdata)
        if flying is not None:
            self._take(flying)

    def touched(self, tensor: torch.Tensor) -> bool:
        """A tensor is read; whether what it holds is still under way."""
        flying = self._flying.get(tensor.untyped_storage()._cdata) if self._flying else None
        if flying is None or flying.is_awaited:
            return False
        if flying.is_finished:
            self._take(flying)
            return False
        return True

    def take_gradients(self) -> None:
        """Take what the backward pass has summed: whoever steps has waited for it, DDP where nobody sees it."""
        for flying in set(self._flying.values()):
            if flying.call.phase == "backward" and flying.work is not None:
                flying.work.wait()
        with self._recorder.apart("a collective"):
            for flying in {each for each in self._flying.values() if each.is_finished}:
                self._take(flying)

    def overwritten(self, tensor: torch.Tensor) -> None:
        """A tensor is about to be written: what a collective left there is taken before, or is lost."""
        if self.touched(tensor):
            self._lose(self._flying[tensor.untyped_storage()._cdata])

    def _take(self, flying: Flying) -> None:
        if self._is_overwritten(flying):
            self._lose(flying)
            return
        self._forget(flying)
        self._finished(flying.call, flying.results)

    def _is_overwritten(self, flying: Flying) -> bool:
        """Whether something was written where its results lie since it was begun."""
        of = self._recorder.storages.of
        return any(of(tensor).clock > flying.clock for _, tensor in flying.results)

    def _land(self, flying: Flying) -> None:
        if flying.is_finished:
            self._take(flying)
        else:
            self._lose(flying)

    def _lose(self, flying: Flying) -> None:
        """Its results can't be known any more."""
        self._forget(flying)
        flying.call.flags.append("unwaited")
        self._recorder.returned(flying.call)

    def _forget(self, flying: Flying) -> None:
        for cdata in [cdata for cdata, each in self._flying.items() if each is flying]:
            del self._flying[cdata]


def _future_of(work: Any) -> Any:
    """The future of a Work; None of what has none."""
    try:
        return None if work is None else work.get_future()
    except RuntimeError:
        return None


def _work_of(result: Any) -> Any:
    """The `Work` among an op's results; the same object that the program is given."""
    for part in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(part, torch.ScriptObject):
            from torch._C._distributed_c10d import Work

            return Work.unbox(part)
    return None
