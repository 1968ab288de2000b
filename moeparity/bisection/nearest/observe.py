"""Which known choices a user's function made: asked at every node that it closes, as the values pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from moeparity.bisection.nearest.calls import Kernels, Sample, Score
from moeparity.bisection.nearest.combinations import Tries, minimal, scored, search
from moeparity.bisection.nearest.report import ChoiceMatch, Nearest, NumberRange
from moeparity.bisection.nearest.vocabulary import (
    Choices,
    Replaced,
    absolute,
    in_order,
    in_words,
    number_ranges,
    places,
    plainest_numbers,
    plainness,
    profiles_choices,
    relative,
    without_numbers,
)
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.inputs.weights.store import Loaded
from moeparity.plan.bind import BoundGraph
from moeparity.plan.graph import Node
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import case_of
from moeparity.plan.sides import CANDIDATE, REFERENCE

WORK: Final = 4096
"""What the search of one function may take over all nodes at which it stands, in calls of small kernels; a node may use
half of what is left.
"""
LEAST: Final = 64
"""A search is begun with at least so much; where less is left, only what was nearest elsewhere is tried. The first one
tries so many combinations, however large the kernels are.
"""
KEPT: Final = 1 << 26
"""Bytes of micro-batches that are kept for a further search, until the layer is done."""
SAMPLES: Final = 4
"""Micro-batches that are searched on, at most; all others confirm or refute."""
SHOWN: Final = 3
"""So many combinations are told where none gives all bits."""


@dataclass(slots=True)
class Memory:
    """What is known of one function from the nodes before: what its searches spent, and what was exact or nearest, with
    nodes by their places in the region.
    """

    spent: float = 0.0
    answers: dict[Choices, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Question:
    """A user's function at the node it closes: asked on the first micro-batch on which it gives other bits than the
    other side's kernels; every later one confirms the answer, or refutes it and is searched on too.

    walkers: whose values are looked at, the first that has any. other: the walker that runs the other side's kernels on
    the inputs of the first of them.
    """

    region: Region
    replaced: Replaced
    walkers: tuple[str, ...]
    other: str
    memory: Memory
    kernels: Kernels = field(init=False)
    kept: list[Sample] = field(default_factory=list)
    searched_on: list[Sample] = field(default_factory=list)
    base: Score = field(default_factory=Score)
    answers: dict[Choices, Score] = field(default_factory=dict)
    tried: set[Choices] = field(default_factory=set)
    given_up: bool = False

    def __post_init__(self) -> None:
        """No call yet."""
        self.kernels = Kernels(self.replaced)

    def lies_beside(self, node: Node) -> bool:
        """Whether a node is of the same segment, so that its values and weights are at hand together with these."""
        return node.name in self.replaced.segment

    def see(self, view: NodeView) -> None:
        """Look at a wave of the node that the region closes at."""
        self.kernels.loaded = view.loaded
        same = self._gives_the_others_bits(view)
        for sample in self._samples(view):
            self._meet(sample, same=same)

    def forget(self) -> None:
        """Keep the answer, and nothing else."""
        self.kernels.loaded = Loaded()
        self.kept, self.searched_on = [], []

    @property
    def result(self) -> Nearest | None:
        """What is known now; None where the function gives the bits of the other side's kernels."""
        if self.base.exact or not self.base.elements:
            return None
        groups: dict[Choices, list[Choices]] = {}
        for choices, score in self.answers.items():
            if score.exact:
                groups.setdefault(without_numbers(choices), []).append(choices)
        matches = [self._match(plainest_numbers(group), group) for group in self._plainest_first(groups)]
        return Nearest(
            node=self.region.nodes[-1],
            call=self.region.call,
            tried=len(self.tried),
            calls=self.kernels.calls,
            as_it_is=self.base.equal,
            found=tuple(matches or (self._match(choices, [choices]) for choices in self._best_first())),
        )

    def _plainest_first(self, groups: Mapping[Choices, Sequence[Choices]]) -> list[Sequence[Choices]]:
        """Exact answers that differ in more than numbers, ranked; none at the places of another and further ones."""
        in_profiles = frozenset(chain.from_iterable(profiles_choices(self.replaced) if len(groups) > 1 else ()))
        plain = [g for g in groups if not any(places(other) < places(g) for other in groups)]
        ranked = sorted(plain, key=lambda g: plainness(self.replaced, plainest_numbers(groups[g]), in_profiles))
        return [groups[group] for group in ranked]

    def _best_first(self) -> list[Choices]:
        return sorted(self.answers, key=lambda choices: (-self.answers[choices].equal, self.answers[choices].remainder))

    def _match(self, choices: Choices, variants: Sequence[Choices]) -> ChoiceMatch:
        score, ranges = self.answers[choices], number_ranges(variants)
        order = [place for place, _ in in_order(self.replaced.all_nodes, choices)]
        return ChoiceMatch(
            choices=in_words(self.replaced.all_nodes, choices),
            equal=score.equal,
            mean_ulp=score.mean_ulp,
            exact=score.exact,
            compared=score.elements / self.base.elements,
            between=tuple(
                NumberRange(place=f"{place[0]}:{place[1]}", least=ranges[place][0], greatest=ranges[place][1])
                for place in order
                if place in ranges and ranges[place][0] < ranges[place][1]
            ),
        )

    def _samples(self, view: NodeView) -> Iterator[Sample]:
        """The micro-batches of a wave, each as the function met it."""
        walker = next((walker for walker in self.walkers if view.ran(walker)), None)
        if walker is None:
            return
        ports = range(len(view.node.outputs))
        for blocks in zip(*(view.outputs[walker][port] for port in ports), strict=True):
            batch = blocks[0].batch
            turn = next(turn for turn in view.turns[walker] if turn.batch is batch)
            if turn.source is not None:
                # Values of other tokens, which no function was called for here.
                continue
            entering = [assemble(value, batch) for value in view.inputs[walker] if value is not None]
            yield Sample(
                values=dict(zip(self.region.inputs, entering, strict=True)),
                given=tuple(block.tensor for block in blocks),
                phase=case_of(self.replaced.plan.phases, turn.sizes) or turn.phase,
            )

    def _gives_the_others_bits(self, view: NodeView) -> bool:
        """Whether the other side's kernels have given the same bits on the same inputs in the pass itself."""
        if not self.walkers or self.other in view.regions or not view.ran(self.other, self.walkers[0]):
            return False
        ports = len(view.node.outputs)
        ids = ([cell[:ports] for cell in view.output_ids(name)] for name in (self.other, self.walkers[0]))
        return next(ids) == next(ids)

    def _meet(self, sample: Sample, *, same: bool) -> None:
        base = Score.of(sample.given, sample.given) if same else scored(self.kernels, frozenset(), [sample])
        if base is None:
            return
        self.base.add(base)
        for choices, score in self.answers.items():
            score.add(scored(self.kernels, choices, [sample]) or Score.of_refused(sample))
        if not self.kept or sum(kept.bytes for kept in self.kept) + sample.bytes <= KEPT:
            self.kept.append(sample)
        explained = any(score.exact for score in self.answers.values())
        if not (explained or self.given_up or self.base.exact):
            self._search(sample)
        self.kernels.let_go()

    def _search(self, sample: Sample) -> None:
        """Search on a micro-batch, beside those searched on before; then confirm on all that were kept."""
        self.searched_on.append(sample)
        first = LEAST if self.memory.spent == 0 else 0
        tries = Tries(kernels=self.kernels, samples=self.searched_on, limit=self._limit, least=first)
        exact = self._known(tries) or search(tries, self._starts())
        self.tried |= {choices for choices, score in tries.scores.items() if score is not None and choices}
        self.memory.spent += tries.spent
        samples = [sample, *(kept for kept in self.kept if kept is not sample)]
        scores = {choices: scored(self.kernels, choices, samples) for choices in exact or tries.ranked()[:SHOWN]}
        self.answers = {choices: score for choices, score in scores.items() if score is not None}
        self.memory.answers |= dict.fromkeys(relative(self.replaced, choices) for choices in self.answers)
        refuting = next((s for s in samples if exact and not self._any_exact_on(s)), None)
        if refuting is not None and len(self.searched_on) < SAMPLES:
            self._search(refuting)
        elif not exact or refuting is not None:
            self.given_up = True

    def _any_exact_on(self, sample: Sample) -> bool:
        scores = (scored(self.kernels, choices, [sample]) for choices in self.answers)
        return any(score is not None and score.exact for score in scores)

    def _known(self, tries: Tries) -> list[Choices]:
        """What was found at the nodes before, where it gives every bit here too."""
        exact = []
        for known in self.memory.answers:
            choices = absolute(self.replaced, known)
            score = scored(self.kernels, choices, tries.samples)
            tries.scores[choices] = score
            if score is not None and score.exact:
                exact.append(minimal(tries, choices))
        return exact

    def _starts(self) -> Iterator[Choices]:
        """What the function's side would compute without it, and what each engine profile would."""
        own_choices = [self.replaced.as_chosen(settings) for settings in self.replaced.own]
        yield from dict.fromkeys(choices for choices in (*own_choices, *profiles_choices(self.replaced)) if choices)

    @property
    def _limit(self) -> float:
        """How much a search may spend; nothing where too little is left to begin with."""
        left = (WORK - self.memory.spent) / 2
        return left if left >= LEAST else 0.0


@dataclass(slots=True)
class NearestChoices:
    """Asks every function at the node it closes; what lies in memory goes with the layer."""

    questions: Sequence[Question]
    _open: list[Question] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for question in [q for q in self._open if not q.lies_beside(view.node)]:
            question.forget()
            self._open.remove(question)
        for question in self.questions:
            if question.region.nodes[-1] == view.node.name:
                question.see(view)
                self._open += [] if question in self._open else [question]

    @property
    def result(self) -> tuple[Nearest, ...]:
        """By node, in the order of the pass, where the function gives other bits than the other side's kernels."""
        return tuple(answer for question in self.questions if (answer := question.result) is not None)


STATE = (Nearest, ChoiceMatch, NumberRange)


def observer(plan: Plan, trials: Trials) -> NearestChoices | None:
    """Asks which known choices users' functions made; None where none runs, or only the two sides do."""
    return NearestChoices(questions(plan)) if plan.functions and plan.attribution else None


def questions(plan: Plan) -> list[Question]:
    """The functions of both sides, in the order of the nodes they close at, but those that both sides run there."""
    sides = {REFERENCE: plan.reference.plan, CANDIDATE: plan.candidate.plan}
    others = {REFERENCE: CANDIDATE, CANDIDATE: REFERENCE}
    memories: dict[str, Memory] = {}
    asked = []
    for node in plan.model.graph.nodes:
        for name, plan_of_side in sides.items():
            region, base = plan_of_side.region(node.name), sides[others[name]]
            other = base.region(node.name)
            if region is None or (other is not None and (other.call, other.nodes) == (region.call, region.nodes)):
                continue
            walkers = (SHADOW,) if name == CANDIDATE else ()
            asked.append(
                Question(
                    region=region,
                    replaced=Replaced.of(region, base, plan_of_side),
                    walkers=(*walkers, name) if _readable(region, base, plan_of_side) else walkers,
                    other=REFERENCE if name == CANDIDATE else SHADOW,
                    memory=memories.setdefault(region.call, Memory()),
                )
            )
    return asked


def _readable(region: Region, plan: BoundGraph, maker: BoundGraph) -> bool:
    """Whether a plan's kernels may read what another plan hands a region: whole values, made under the choices that the
    nodes behind go along with.
    """
    nodes = [node for node in plan.graph.nodes if node.name in region.nodes]
    pairs = [
        (plan.told_to(node)[name], maker.told_to(node)[name])
        for node in nodes
        for name, by in node.op.told.items()
        if dict(zip(node.ports, node.inputs, strict=True)).get(by.port) in region.inputs
    ]
    return all(a == b for a, b in pairs) and all(plan.partials[value] == 1 for value in region.inputs)
