"""A lock in use: the entry of each recipe, the comparison of a run with it, and the new lock of `--update`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from moeparity import paths
from moeparity.bisection.outline import Outline
from moeparity.bisection.report import Report
from moeparity.check.baseline import lock
from moeparity.check.baseline.compare import BITS, KEPT, PresentRun, compare
from moeparity.check.baseline.entry import entry, first_budget, measured, stated
from moeparity.check.baseline.lock import Entry, Lock
from moeparity.errors import MoeparityError, Where, listed
from moeparity.output.findings import Finding
from moeparity.output.words import few, quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A lock with which recipes are compared, or which will be written anew (`update`)."""

    path: Path
    lock: Lock
    update: bool = False

    @classmethod
    def opened(cls, path: Path, *, update: bool = False) -> Baseline:
        """The lock at a path; an empty one if it is to be written and does not exist.

        Raises MoeparityError for a lock that can't be used.
        """
        is_new = update and not paths.present(path)
        return cls(path=path, lock=Lock(recipes={}) if is_new else lock.read(path), update=update)

    def key(self, recipe: Path) -> str:
        """The recipe's key in the lock: its path relative to the lock's folder."""
        return Path(os.path.relpath(recipe.resolve(), self.path.parent.resolve())).as_posix()

    def gone(self) -> list[str]:
        """Keys of the lock whose recipe no longer exists."""
        return [name for name in self.lock.recipes if not paths.present(self.path.parent / name)]

    def refuse_gone(self) -> None:
        """Raise MoeparityError if the lock has recipes that no longer exist, unless the lock is to be written anew."""
        gone = self.gone()
        if gone and not self.update:
            raise MoeparityError(
                f"{Where(self.path)}: the lock holds {few(gone, 3)}, and there is no such file. Was it renamed or "
                "removed? `--update` takes it out."
            )

    def refuse_unkept(self, recipe: Path) -> None:
        """Raise MoeparityError for a recipe without an entry, unless the lock is to be written anew."""
        if self.key(recipe) not in self.lock.recipes and not self.update:
            raise MoeparityError(
                f"{Where(recipe)}: the lock {Where(self.path)} has nothing of {self.key(recipe)}. `--update` adds it."
            )

    def findings(self, recipe: Path, present: PresentRun) -> list[Finding]:
        """The comparison of a run with its recipe's entry; if the lock is to be written anew, what will change in it.

        Raises MoeparityError as `refuse_unkept`.
        """
        self.refuse_unkept(recipe)
        lock_entry = self.lock.recipes.get(self.key(recipe))
        if lock_entry is None:
            return [Finding(expectation=KEPT, status="updated", found="nothing so far; all of it is written")]
        findings = compare(lock_entry, present)
        if not self.update:
            return findings
        rewritten = [
            replace(finding, status="not judged" if finding.status == "not judged" and present.unsteady else "updated")
            for finding in findings
            if finding.status != "ok"
        ]
        dropped = set(lock_entry.machines) - set(updated(lock_entry, present).machines) - {present.machine}
        if dropped:
            words = f"those of {quantity(len(dropped), 'other machine')} are of other numerics now, and are dropped"
            rewritten.append(Finding(expectation=BITS, status="updated", found=words))
        return rewritten

    def written(self, entries: Mapping[str, Entry]) -> str:
        """The lock as text, without a last newline: with these entries by key, and without recipes that no longer
        exist.
        """
        recipes = {name: lock_entry for name, lock_entry in self.lock.recipes.items() if name not in self.gone()}
        return lock.text(Lock(recipes={**recipes, **entries}))


def present_run(report: Report, outline: Outline, folder: Path, *, sampled: bool) -> PresentRun:
    """A run in the form that is compared with an entry. folder: of the checkpoint; sampled: the run made its own
    tokens.
    """
    assert report.digests is not None, "asked for"
    rows = stated(outline)
    return PresentRun(
        entry=entry(report, rows, folder, sampled=sampled),
        measured=measured(report),
        machine=report.digests.machine,
        origins={
            side: {(node, choice.name): choice.origin for node, choices in of.items() for choice in choices}
            for side, of in rows.items()
        },
        graph=outline.graph,
        unsteady=listed(dict.fromkeys(function.call for function in report.not_deterministic)),
    )


def updated(lock_entry: Entry | None, present: PresentRun) -> Entry:
    """The new entry for a run. Budgets of the old entry stay, and so do bits of other machines if the numerics are
    the same.
    """
    if lock_entry is None:
        return present.entry
    budgets = {
        name: budget if budget.holds(present.measured[name]) else first_budget(name, present.measured[name])
        for name, budget in lock_entry.budgets.items()
        if name in present.measured
    }
    machines = lock_entry.machines if _alike(lock_entry, present.entry) else {}
    changes = {"budgets": budgets or present.entry.budgets, "machines": {**machines, **present.entry.machines}}
    return present.entry.model_copy(update=changes)


def _alike(lock_entry: Entry, new_entry: Entry) -> bool:
    """Whether both would give the same values on one machine."""
    return (lock_entry.sides, lock_entry.tokens, lock_entry.weights, _values(lock_entry)) == (
        new_entry.sides,
        new_entry.tokens,
        new_entry.weights,
        _values(new_entry),
    )


def _values(of: Entry) -> dict[str, dict[str, dict[str, str]]]:
    return {
        side: {node: {name: value[0] for name, value in choices.items()} for node, choices in nodes.items()}
        for side, nodes in of.choices.items()
    }
