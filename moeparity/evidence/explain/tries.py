"""Combinations of choices, each tried once: how near its values come to what is to be explained, and what the trial
costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from moeparity.errors import SpecError
from moeparity.evidence.explain.engines import known_choices
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choice, Choices
from moeparity.evidence.explain.sample import Ports, Sample
from moeparity.evidence.explain.score import Score
from moeparity.progress import Stop

NOTHING: Final[Choices] = frozenset()
DEAR: Final = 0.1
"""Of what may be spent, so much may be spent on one combination."""
SLOW: Final = 8
"""What takes more, such as a GEMM that is written out, is tried after what takes less."""
MORE: Final = 256
"""So much may be spent on further exact combinations, however soon the first was found; twice that where a plainer
one may be among them.
"""
REACH: Final = 1e-3
"""A choice is added late that moves what is computed by less than so much of what is left, in squares: it can make that
6 % less at most.
"""
PAIR: Final = 2
"""Choices of a combination that is plain."""


class SpentError(Exception):
    """The kernel calls that a search may make are made, or it is to stop."""


UNTRIED: Final = Score()


@dataclass(slots=True, kw_only=True)
class Tries:
    """Combinations of choices, each tried once on some micro-batches. `limit` is how much work may be spent on them; a
    kernel call costs 1, and so does a combination that is refused. `stop` ends them whatever is spent. `checkpoints`:
    folders whose weights may stand in place of a node's own.
    """

    kernels: Kernels
    samples: Sequence[Sample]
    limit: float
    least: int = 0
    stop: Stop = field(default_factory=Stop)
    checkpoints: Sequence[str] = ()
    scores: dict[Choices, Score | None] = field(default_factory=dict)
    effects: dict[Choices, float] = field(default_factory=dict)
    spent: float = 0.0

    def score(self, choices: Choices) -> Score | None:
        """How near the values under these choices come to the recorded ones. None if an op refuses the choices, or if
        one trial of them takes too much work. Raises SpentError once all the work is spent.
        """
        if choices not in self.scores:
            self.refuse_spent()
            before = self.kernels.work
            dear = self.price(choices) > self.limit * DEAR
            self.scores[choices] = None if dear else self._scored(choices)
            self.spent += max(1.0, self.kernels.work - before)
        return self.scores[choices]

    def refuse_spent(self) -> None:
        """Raises SpentError once all the work is spent, or it is time to stop."""
        if self.stop.is_due or (self.spent >= self.limit and len(self.scores) >= self.least):
            raise SpentError

    def _scored(self, choices: Choices) -> Score | None:
        trials = [self.kernels.outputs(choices, sample) for sample in self.samples]
        bases = [self.kernels.outputs(NOTHING, sample) for sample in self.samples if len(choices) == 1]
        self.effects[choices] = _distance(bases, trials) if bases else math.inf
        score = _score(self.samples, trials)
        return None if score.refused else score

    def reaches(self, choice: Choice, parent: Choices) -> bool:
        """Whether a choice can make what the parent leaves much less, given how much it changes alone: it can come no
        nearer than it moves. A choice that changes nothing alone may still change something beside others.
        """
        score, effect = self.scores.get(parent), self.effects.get(frozenset([choice]), 0.0)
        return score is None or effect == 0 or effect >= REACH * score.distance

    def price(self, choices: Choices) -> float:
        """What they take at least, in calls of small kernels; nothing where an op refuses them."""
        try:
            return self.kernels.price(choices, self.samples)
        except SpecError:
            return 0.0

    def remainder(self, choices: Choices) -> float:
        """What they leave unexplained; infinite where they are refused. Raises SpentError."""
        score = self.score(choices)
        return math.inf if score is None else score.remainder

    def exact(self, choices: Choices) -> bool:
        """Whether they give every bit. Raises SpentError."""
        return self.remainder(choices) == 0.0

    @property
    def runs(self) -> bool:
        """Whether the nodes run without any choice."""
        return self.score(NOTHING) is not None

    def ranked(self) -> list[Choices]:
        """Everything that was tried and runs, what leaves least unexplained first, smaller combinations before."""
        tried = [choices for choices, score in self.scores.items() if score is not None and choices]
        return sorted(tried, key=lambda choices: (self.remainder(choices), len(choices), sorted(map(str, choices))))


def scored(kernels: Kernels, choices: Choices, samples: Sequence[Sample]) -> Score:
    """How near some choices come on some micro-batches."""
    return _score(samples, (kernels.outputs(choices, sample) for sample in samples))


def _score(samples: Sequence[Sample], trials: Iterable[Ports | None]) -> Score:
    score = Score()
    for sample, trial in zip(samples, trials, strict=True):
        score.add(Score.of_refused(sample) if trial is None else Score.of(sample.compared, trial))
    return score


def _distance(bases: Sequence[Ports | None], trials: Sequence[Ports | None]) -> float:
    """How far some choices move what is computed without any; infinite where that is not known."""
    score = Score()
    for base, trial in zip(bases, trials, strict=True):
        if base is None or trial is None:
            return math.inf
        score.add(Score.of(base, trial))
    return score.distance if score.same_dtypes else math.inf


def tried(tries: Tries, combinations: Iterable[Choices], exact: list[Choices]) -> list[Choices]:
    """Try them all; what gives every bit goes, without what it can do without, to `exact`."""
    every = []
    for choices in combinations:
        every.append(choices)
        if tries.exact(choices):
            if not exact:
                # What else gives every bit is looked not much longer than this was, unless it may be plainer.
                tries.limit = min(tries.limit, 2 * tries.spent + (MORE if len(choices) <= PAIR else 2 * MORE))
            smallest = minimal(tries, choices)
            exact += [smallest] if smallest not in exact else []
    return every


def minimal(tries: Tries, choices: Choices) -> Choices:
    """A combination that gives every bit without choices that it gives them without: without all that take no effect,
    and as far as there is work left without others.
    """
    smallest = tries.kernels.replaced.in_effect(choices) or choices
    tries.scores[smallest] = tries.scores[choices]
    with suppress(SpentError):
        for choice in sorted(smallest, key=str):
            fewer = smallest - {choice}
            if fewer and tries.exact(fewer):
                return minimal(tries, fewer)
    return smallest


def children(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with one more known choice, at a place where it has none; without what is refused alone. Nothing
    if the ops refuse the combination itself.
    """
    replaced, places_of = tries.kernels.replaced, places(parent)
    try:
        plan = replaced.bound(parent)
    except SpecError:
        return
    # A grid of 8 or 4 bits has a dozen choices of its own, and GEMMs on it take long: it is tried alone and as profiles
    # have it, and nothing is built upon it.
    if any(map(replaced.is_on_grid, parent)):
        return
    # Where nothing runs as it is, what is refused alone may run beside what makes it run.
    alone = tries.runs
    for choice in known_choices(replaced, plan):
        if parent and replaced.is_on_grid(choice):
            continue
        if choice[0] not in places_of and (not alone or tries.scores.get(frozenset([choice]), UNTRIED) is not None):
            yield parent | {choice}
