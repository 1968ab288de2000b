"""Watches the tensors that a program made of its weights, from one update to the next."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from moeparity.evidence.census.census import Census, census
from moeparity.evidence.census.follow import followed
from moeparity.evidence.census.outcome import Derived


class DerivedWatch:
    """Takes censuses: before the first call, behind it, behind the first call after an update, behind calls after
    updates that come `every` calls or more later (0: none at all), and at the end.

    Behind a call, since a program may make its tensors anew when it next needs them. latest: the last census.
    """

    def __init__(self, every: int) -> None:
        self.latest: Census | None = None
        self._every, self._calls, self._compared = every, 0, 0
        self._is_open = False
        self._updated: int | None = None
        """The number of calls before the last update that no census has seen yet."""
        self._parted: set[str] = set()
        """Paths of tensors that were once found apart from their weights, which the next update decided on."""

    def begin(self, modules: Sequence[nn.Module]) -> None:
        """The census before the first call."""
        if self._every:
            self.latest = census(modules)

    def updated(self) -> None:
        """Weights may have changed."""
        self._updated = self._calls

    def called(self, modules: Sequence[nn.Module]) -> list[Derived] | None:
        """A call has ended: what became of tensors at updates since the last census; None where none was compared."""
        self._calls += 1
        since = self._calls - self._compared
        is_due = self._updated is not None and (not self._compared or since >= self._every or self._is_open)
        return self._look(modules) if self._every and (is_due or self._calls == 1) else None

    def ended(self, modules: Sequence[nn.Module]) -> list[Derived] | None:
        """The same behind the last call; what was updated behind that is not looked at."""
        is_due = self._every and self._updated is not None and self._calls > self._updated
        return self._look(modules) if is_due else None

    def _look(self, modules: Sequence[nn.Module]) -> list[Derived] | None:
        before, is_updated = self.latest, self._updated is not None
        self.latest, self._updated = census(modules, before), None
        if before is None or not is_updated:
            return None
        self._compared = self._calls
        results = followed(before, self.latest)
        parted = {each.path for each in results if each.outcome == "apart"} - self._parted
        self._is_open = bool(parted)
        self._parted |= parted
        return results
