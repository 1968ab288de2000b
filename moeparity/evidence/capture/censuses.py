"""Censuses beside a trace: of every outermost module, when it is first called and around updates of its weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from moeparity.errors import MoeparityError
from moeparity.evidence.capture.recorder import Recorder
from moeparity.evidence.census.census import Census
from moeparity.evidence.census.notice import WeightsNotice
from moeparity.evidence.census.outcome import Derived, faults, in_words, summed
from moeparity.evidence.census.watch import DerivedWatch
from moeparity.evidence.weights.fingerprint_files import RankWeights, write_weights

FOLDER = "census"
"""Of a rank's trace: `CLASS-NUMBER.safetensors`, which `moeparity weights` compares."""
_EVERY = 128
"""Calls between two censuses of a program that updates its weights all the time."""


@dataclass(slots=True, eq=False)
class _Root:
    """An outermost module: its label, what its weights were, and its censuses."""

    module: weakref.ref[nn.Module]
    label: str
    notice: WeightsNotice
    watch: DerivedWatch


class Censuses:
    """Takes a census of each outermost module after its first call, and after a call that follows an update of its
    weights. It notices an update by a sample of their bytes.

    `folder`: where the rank's trace is, None as long as there is none.
    """

    def __init__(self, recorder: Recorder, folder: Callable[[], Path | None]) -> None:
        self._recorder, self._folder = recorder, folder
        self._roots: dict[int, _Root] = {}
        self._unwritten: list[tuple[str, Census]] = []
        self._numbers: dict[str, int] = {}

    def called(self, module: nn.Module) -> None:
        """An outermost module has returned."""
        root = self._root(module)
        if root is None:
            return
        if root.notice.has_changed():
            root.watch.updated()
        is_first = root.watch.latest is None
        results = root.watch.called([module])
        self._tell(root, results)
        if root.watch.latest is not None and (is_first or faults(results or ())):
            self._unwritten.append((root.label, root.watch.latest))
        self.write()

    def stop(self) -> None:
        """The recording ends: the last census of each module is to be written too."""
        for root in self._roots.values():
            module = root.module()
            if module is not None:
                self._tell(root, root.watch.ended([module]))
            if root.watch.latest is not None:
                self._unwritten.append((root.label, root.watch.latest))

    def write(self) -> None:
        """Write what was not written yet, if the trace has begun."""
        folder = self._folder()
        if folder is None:
            return
        for label, census in self._unwritten:
            number = self._numbers[label] = self._numbers.get(label, -1) + 1
            (folder / FOLDER).mkdir(exist_ok=True)
            weights = RankWeights(rank=0, ranks=1, cast="", parts=(), census=census)
            try:
                write_weights(folder / FOLDER / f"{label}-{number:03}.safetensors", weights)
            except MoeparityError as error:
                self._recorder.note(f"a census could not be written: {error}")
        self._unwritten.clear()

    def _root(self, module: nn.Module) -> _Root | None:
        """What is remembered of a module; None for one without parameters."""
        root = self._roots.get(id(module))
        if root is not None and root.module() is module:
            return root
        notice = WeightsNotice(module)
        if not notice.has_weights:
            return None
        label = type(module).__name__
        label += "" if all(each.label != label for each in self._roots.values()) else f"-{len(self._roots)}"
        root = _Root(weakref.ref(module), label, notice, DerivedWatch(_EVERY))
        self._roots[id(module)] = root
        return root

    def _tell(self, root: _Root, results: list[Derived] | None) -> None:
        stale = faults(results or ())
        if results is not None and stale:
            where = f"step {self._recorder.step}: {root.label}"
            for fault in stale[:4]:
                self._recorder.note(f"{where}: {in_words(fault)}")
            self._recorder.note(f"{where}: {summed(results)}")
