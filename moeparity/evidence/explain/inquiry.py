"""One inquiry: it meets the micro-batches of one piece of a program, and searches for known choices that give their
bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from moeparity.evidence.explain import faults
from moeparity.evidence.explain.combinations import search
from moeparity.evidence.explain.engines import profiles_choices
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.plainness import (
    in_order,
    in_words,
    number_ranges,
    places,
    plainest_numbers,
    plainness,
    without_numbers,
)
from moeparity.evidence.explain.replaced import Choices, Replaced, absolute, relative
from moeparity.evidence.explain.report import ChoiceMatch, NumberRange, OrderSearch
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.score import Score
from moeparity.evidence.explain.tries import Tries, minimal, scored
from moeparity.evidence.explain.unlisted_orders import OrderBudget, UnlistedOrders
from moeparity.evidence.explain.vocabulary import in_one_dtype
from moeparity.inputs.weights.loaded import Loaded
from moeparity.progress import Stop

WORK: Final = 16384
"""What the searches that share one memory may take over all nodes at which they stand, in calls of small kernels, where
nothing else is said; a node may use half of what is left.
"""
LEAST: Final = 64
"""A search is begun with at least so much; where less is left, only what was nearest elsewhere is tried. The first one
tries so many combinations, however large the kernels are.
"""
KEPT: Final = 1 << 26
"""Bytes of micro-batches that are kept for a further search, until they are forgotten."""
SAMPLES: Final = 4
"""Micro-batches that are searched on, at most; all others confirm or refute."""
SHOWN: Final = 3
"""So many combinations are told where none gives all bits."""


@dataclass(slots=True)
class Memory:
    """What searches at earlier nodes leave for later ones: the work that they spent, and for each place of a replaced
    chain of nodes the exact or nearest combinations, so that the same place of another layer tries these first.

    `work` is what these searches may spend over all nodes; `stop` ends them before that. `checkpoints` are others,
    whose weights may be here. `orders`: what may be spent on orders that no file lists, where nothing else explains a
    node; None: none is sought.
    """

    work: float = field(default_factory=lambda: WORK)
    spent: float = 0.0
    stop: Stop = field(default_factory=Stop)
    checkpoints: Sequence[str] = ()
    orders: OrderBudget | None = None
    answers: dict[Choices, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Inquiry:
    """The search for what a piece of a program computed in place of the nodes in `replaced`. It begins at the first
    micro-batch on which the plan's own kernels give other bits. Every later micro-batch confirms the answer, or refutes
    it; then the search goes on with that micro-batch too. `stopped`: it was ended before it came to its own end.
    """

    replaced: Replaced
    memory: Memory
    kernels: Kernels = field(init=False)
    samples: list[Sample] = field(default_factory=list)
    searched_on: list[Sample] = field(default_factory=list)
    base: Score = field(default_factory=Score)
    answers: dict[Choices, Score] = field(default_factory=dict)
    tried: set[Choices] = field(default_factory=set)
    given_up: bool = False
    stopped: bool = False
    ranked: Sequence[Choices] = ()
    orders: OrderSearch | None = None

    def __post_init__(self) -> None:
        """No call yet."""
        self.kernels = Kernels(self.replaced)

    def forget(self) -> None:
        """Keep the answer, and nothing else."""
        self.kernels.loaded = Loaded()
        self.samples, self.searched_on = [], []

    def meet(self, sample: Sample, *, same: bool = False) -> None:
        """Look at a further micro-batch; `same` where the plan's own kernels are known to give its bits."""
        base = Score.of(sample.compared, sample.compared) if same else scored(self.kernels, frozenset(), [sample])
        self.base.add(base)
        for choices, score in self.answers.items():
            score.add(scored(self.kernels, choices, [sample]))
        if not self.samples or sum(sample_kept.bytes for sample_kept in self.samples) + sample.bytes <= KEPT:
            self.samples.append(sample)
        explained = any(score.exact for score in self.answers.values())
        if not (explained or self.given_up or self.base.exact):
            self._search(sample)
        self.kernels.let_go()

    def search_orders(self, samples: Sequence[Sample]) -> None:
        """Where nothing that a file lists gives every bit of all these micro-batches: orders that none lists."""
        budget = self.memory.orders
        if budget is None or not self.given_up or self.stopped:
            return
        stop = budget.of_node(self.memory.stop)
        search = UnlistedOrders(kernels=self.kernels, ranked=self.ranked, samples=samples, stop=stop)
        self.orders = search.search()
        budget.spent += self.orders.seconds
        if search.fits:
            scores = {fit.choices: scored(self.kernels, fit.choices, samples) for fit in search.fits}
            self.answers = {choices: score for choices, score in scores.items() if not score.refused}
            self.memory.answers |= dict.fromkeys(relative(self.replaced, choices) for choices in self.answers)
        self.kernels.let_go()

    @property
    def matches(self) -> tuple[ChoiceMatch, ...]:
        """What gives every bit, the plainest first; where nothing does what comes nearest, the best first."""
        matches = [self._match(plainest_numbers(group), group) for group in self._groups()]
        return tuple(matches or (self._match(choices, [choices]) for choices in self._best_first()))

    def _groups(self) -> list[Sequence[Choices]]:
        """Exact answers that differ in more than numbers, ranked; none at the places of another and further ones."""
        groups: dict[Choices, list[Choices]] = {}
        for choices, score in self.answers.items():
            if score.exact:
                groups.setdefault(without_numbers(choices), []).append(choices)
        in_profiles = frozenset(chain.from_iterable(profiles_choices(self.replaced) if len(groups) > 1 else ()))
        plain = [g for g in groups if not any(places(smaller) < places(g) for smaller in groups)]
        ranked = sorted(plain, key=lambda g: plainness(self.replaced, plainest_numbers(groups[g]), in_profiles))
        return [groups[group] for group in ranked]

    @property
    def best(self) -> list[Choices]:
        """The combinations behind `matches`, in their order."""
        return [plainest_numbers(group) for group in self._groups()] or self._best_first()

    def _best_first(self) -> list[Choices]:
        return sorted(self.answers, key=lambda choices: (-self.answers[choices].equal, self.answers[choices].remainder))

    def _match(self, choices: Choices, variants: Sequence[Choices]) -> ChoiceMatch:
        score, ranges = self.answers[choices], number_ranges(variants)
        nodes = self.replaced.named_nodes
        order = [place for place, _ in in_order(nodes, choices)]
        words = (faults.in_words(nodes, place, value) for place, value in in_order(nodes, choices))
        return ChoiceMatch(
            choices=in_words(nodes, choices),
            equal=score.equal,
            mean_ulp=score.mean_ulp,
            exact=score.exact,
            compared=score.elements / self.base.elements,
            faults=tuple(filter(None, words)),
            between=tuple(
                NumberRange(place=f"{place[0]}:{place[1]}", least=ranges[place][0], greatest=ranges[place][1])
                for place in order
                if place in ranges and ranges[place][0] < ranges[place][1]
            ),
        )

    def _search(self, sample: Sample) -> None:
        """Search for choices that give the bits of this micro-batch and of those searched on before; then try what was
        found on every micro-batch that was kept.
        """
        self.searched_on.append(sample)
        first = LEAST if self.memory.spent == 0 else 0
        tries = Tries(
            kernels=self.kernels,
            samples=self.searched_on,
            limit=self._limit,
            least=first,
            stop=self.memory.stop,
            checkpoints=self.memory.checkpoints,
        )
        exact = self._earlier_answers(tries) or search(tries, self._starts())
        self.tried |= {choices for choices, score in tries.scores.items() if score is not None and choices}
        self.memory.spent += tries.spent
        self.ranked = tries.ranked()
        samples = [sample, *(earlier for earlier in self.samples if earlier is not sample)]
        scores = {choices: scored(self.kernels, choices, samples) for choices in exact or tries.ranked()[:SHOWN]}
        self.answers = {choices: score for choices, score in scores.items() if not score.refused}
        self.memory.answers |= dict.fromkeys(relative(self.replaced, choices) for choices in self.answers)
        refuting = next((s for s in samples if exact and not self._any_exact_on(s)), None)
        if refuting is not None and len(self.searched_on) < SAMPLES:
            self._search(refuting)
        elif not exact or refuting is not None:
            self.given_up, self.stopped = True, self.memory.stop.is_due

    def _any_exact_on(self, sample: Sample) -> bool:
        return any(scored(self.kernels, choices, [sample]).exact for choices in self.answers)

    def _earlier_answers(self, tries: Tries) -> list[Choices]:
        """What was found at the nodes before, where it gives every bit here too."""
        exact = []
        for answer in self.memory.answers:
            choices = absolute(self.replaced, answer)
            score = scored(self.kernels, choices, tries.samples)
            tries.scores[choices] = None if score.refused else score
            if score.exact:
                exact.append(minimal(tries, choices))
        return exact

    def _starts(self) -> Iterator[Choices]:
        """What the piece's own side sets there, what each engine profile does, and everything in one dtype."""
        own_choices = [self.replaced.as_chosen(settings) for settings in self.replaced.own_settings]
        whole = (*own_choices, *profiles_choices(self.replaced), *in_one_dtype(self.replaced))
        yield from dict.fromkeys(choices for choices in whole if choices)

    @property
    def _limit(self) -> float:
        """How much a search may spend; nothing where too little is left to begin with."""
        work_left = (self.memory.work - self.memory.spent) / 2
        return work_left if work_left >= LEAST else 0.0
