"""Watches the weights of a rank while a job runs: they must be what they were when last allowed to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from moeparity.ranks.differing_fields import CHANGES
from moeparity.ranks.parameter_digests import TensorDigest, changed, parameter_digests


class WatchedWeights:
    """Digests of a rank's modules, compared with a baseline every `every` calls (0: never).

    sharded, replicated: globs of names, as `parameter_digests` takes them. updated: weights may have changed since the
    baseline was taken.
    """

    def __init__(
        self, modules: Sequence[nn.Module], rank: int, every: int, sharded: Sequence[str], replicated: Sequence[str]
    ) -> None:
        self.modules = modules
        self.updated = False
        self._rank, self._every, self._sharded, self._replicated = rank, every, sharded, replicated
        self._baseline: dict[str, TensorDigest] = {}
        self._looked = 0

    @property
    def watched(self) -> bool:
        """Whether there are weights to watch."""
        return bool(self.modules and self._every)

    def take(self, number: int) -> Mapping[str, TensorDigest]:
        """Take what this rank holds before call `number` as its new baseline, and return it."""
        self.updated, self._looked = False, number
        self._baseline = self._current()
        return self._baseline

    def due(self, number: int) -> bool:
        """Whether the weights have to be looked at before this call; if so, they count as looked at."""
        due = bool(self._baseline) and number - self._looked >= self._every
        if due:
            self._looked = number
        return due

    def changes(self) -> dict[str, str]:
        """`weights.NAME` -> what became of a tensor that differs from the baseline."""
        current = self._current()
        names = changed(self._baseline, current)
        return {f"{CHANGES}{name}": f"changed to {current[name].bits}" if name in current else "gone" for name in names}

    def _current(self) -> dict[str, TensorDigest]:
        return parameter_digests(self.modules, self._rank, sharded=self._sharded, replicated=self._replicated)
