"""What a server's steps say of each token of a log: which step gave its log-probability, and what that step was.

The steps are a file as `schedule: {file: ...}` of a recipe takes it (docs/schedules.md), of any number of versions of
the weights. A token's log-probability is given by the row before it, so it is that row's step that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from moeparity.errors import LogError, Where
from moeparity.logs.record import Sequence
from moeparity.metrics.chunk import UNKNOWN
from moeparity.plan.schedule.recorded import step_lines
from moeparity.plan.schedule.steps import PHASES

WAYS: Final = ("phase", "rows", "drafted", "cache", "preempted", "weights")
"""What is said of a token, by name: the phase, rows and weights of its step, and where the keys of its sequence came
from.
"""
_VERIFY: Final = PHASES.index("verify")
_CACHE: Final = ("computed", "prefix found", "prefix of other weights")
_DRAFTED: Final = ("sampled", "an accepted draft")
_PREEMPTED: Final = ("never stopped", "stopped or computed anew")


@dataclass(slots=True)
class _Rows:
    """The steps of one sequence: [first, last + 1, labels of the step]."""

    spans: list[tuple[int, int, tuple[int, int, int]]] = field(default_factory=list)
    request: str | None = None
    weights: int = UNKNOWN
    cache: int = 0


class ServedSteps:
    """The steps of a file. `names`: by way of grouping, what its labels stand for if they are no numbers."""

    def __init__(self, path: Path) -> None:
        self.where = Where(path)
        self._sequences: dict[int, _Rows] = {}
        self._preempted: set[str] = set()
        self._weights: dict[str, int] = {}
        for _, fields in step_lines(path):
            self._add(fields)

    @property
    def names(self) -> dict[str, dict[int, str]]:
        """By way and label, what the label stands for."""
        return {
            "phase": dict(enumerate(PHASES)),
            "drafted": dict(enumerate(_DRAFTED)),
            "cache": dict(enumerate(_CACHE)),
            "preempted": dict(enumerate(_PREEMPTED)),
            "weights": {code: version for version, code in self._weights.items()},
        }

    def labelled(self, sequences: Iterator[Sequence]) -> Iterator[Sequence]:
        """The sequences of a log with labels of their tokens. Raises LogError for one that the file does not have."""
        for sequence in sequences:
            rows = self._sequences.get(int(sequence.id)) if sequence.id.isdecimal() else None
            if rows is None or max(last for _, last, _ in rows.spans) > len(sequence.token_ids):
                problem = "has no such sequence" if rows is None else "computes more tokens of it than it has"
                raise LogError(
                    f"{sequence.where}: sequence {sequence.id}: {self.where} {problem}. Give the log ids that are the "
                    "numbers of the schedule's sequences, as the token file beside it has them."
                )
            yield replace(sequence, labels={**sequence.labels, **self._labels(rows, len(sequence.token_ids))})

    def _add(self, fields: Mapping[str, Any]) -> None:
        """One step: first what it found in a cache, then its rows."""
        weights = UNKNOWN
        if "weights" in fields:
            weights = self._weights.setdefault(fields["weights"], len(self._weights))
        rows = sum(last - first for _, first, last in fields["spans"]) + fields.get("padding", 0)
        phase = PHASES.index(fields["phase"]) if "phase" in fields else UNKNOWN
        for number, first, last, source, _ in fields.get("copies", ()):
            copied = self._sequences.get(source, _Rows(weights=weights))
            sequence = self._sequences.setdefault(number, _Rows())
            if first == 0:
                sequence.cache = 1 if copied.weights == weights else 2
            else:  # Rows of this step, computed beside rejected drafts in a sequence of its own.
                sequence.spans.append((first, last, (phase, rows, weights)))
        requests = fields.get("requests", [None] * len(fields["spans"]))
        for (number, first, last), request in zip(fields["spans"], requests, strict=False):
            sequence = self._sequences.setdefault(number, _Rows())
            sequence.weights = sequence.weights if sequence.spans else weights
            sequence.request = request
            sequence.spans.append((first, last, (phase, rows, weights)))
        self._preempted.update(fields.get("preempted", ()))

    def _labels(self, rows: _Rows, size: int) -> dict[str, Tensor]:
        """int64 [size] by way."""
        steps = torch.full((3, size), UNKNOWN)
        for first, last, labels in rows.spans:
            steps[:, first + 1 : last + 1] = torch.tensor(labels)[:, None]
        drafted = torch.full((size,), UNKNOWN)
        for first, last, (phase, *_) in rows.spans:
            drafted[first + 1 : last] = int(phase == _VERIFY)
            drafted[last : last + 1] = 0
        whole = {"cache": rows.cache, "preempted": int(rows.request in self._preempted)}
        return {
            **dict(zip(("phase", "rows", "weights"), steps, strict=True)),
            "drafted": drafted,
            **{way: torch.full((size,), value) for way, value in whole.items()},
        }
