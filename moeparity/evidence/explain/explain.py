"""Which choices give a node's recorded values bit for bit, and what these values leave undecided."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moeparity.evidence.explain.extent import extent_of
from moeparity.evidence.explain.inquiry import Inquiry, Memory
from moeparity.evidence.explain.left import left_by
from moeparity.evidence.explain.observation import Observation, numbers, recorded_nodes
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.report import Explanation, Left, is_near
from moeparity.evidence.explain.sample import Sample, Values, with_earlier
from moeparity.evidence.explain.score import tokens_apart
from moeparity.evidence.explain.tries import NOTHING
from moeparity.evidence.explain.undecided import open_choices
from moeparity.inputs.weights.loaded import Loaded
from moeparity.ops.attribute import EDGE
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import edges_of

KeptBy = Mapping[Observation, Values]
"""By step, the keys and values that later ones read, where it is known how they were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A region of nodes whose last one is to be explained, from `plan` on.

    loaded: the weights of the node's segment. memory: is shared by searches at nodes that were probably computed alike,
    such as the same node of all layers. known_nodes: those whose values `plan` gives, so that what they hand on needs
    no explanation.
    """

    plan: Plan
    region: tuple[Node, ...]
    loaded: Loaded
    memory: Memory
    known_nodes: Collection[str] = ()

    def inquiry(self, samples: Sequence[Sample]) -> Inquiry:
        """An inquiry that has met nothing, in the phases of these samples."""
        unknown = {node.name for node in self.plan.graph.nodes}.difference(self.known_nodes)
        phases = tuple(dict.fromkeys(step.phase for step in with_earlier(samples)))
        names = [node.name for node in self.region]
        recorded = frozenset.intersection(*(recorded_nodes(self.region, sample.values) for sample in samples))
        replaced = Replaced.of(names, self.plan, self.plan, unknown=unknown, phases=phases, recorded=recorded)
        inquiry = Inquiry(replaced=replaced, memory=self.memory)
        inquiry.kernels.loaded = self.loaded
        return inquiry

    def samples(self, observations: Sequence[Observation], kept_by: KeptBy | None = None) -> list[Sample]:
        """What these steps met. For an earlier step that is not among them, `kept_by` says what it kept, if that is
        known; otherwise it is computed as these are.
        """
        kept_values = {} if kept_by is None else kept_by
        searched_steps = frozenset(observations)
        by_step: dict[Observation, Sample] = {}
        reads_earlier = any(node.op.tokens.by_sequence for node in self.region)

        def sample_of(step: Observation) -> Sample:
            if step not in by_step:
                earlier = tuple(map(before, step.earlier)) if reads_earlier else ()
                by_step[step] = step.sample(self.region, earlier)
            return by_step[step]

        def before(step: Observation) -> Sample:
            if step in searched_steps or step not in kept_values:
                return sample_of(step)
            if step not in by_step:
                values = {**step.values, **kept_values[step]}
                by_step[step] = Sample(values=values, results=(), phase=observations[0].phase)
            return by_step[step]

        return [sample_of(step) for step in observations]

    def answer(
        self, observations: Sequence[Observation], kept_by: KeptBy | None = None, *, same: bool = False
    ) -> Answer:
        """What gives the values of all these steps, searched for; `same` where the plan is known to give their bits."""
        samples = self.samples(observations, kept_by)
        inquiry = self.inquiry(samples)
        for sample in samples:
            inquiry.meet(sample, same=same)
        inquiry.search_orders(samples)
        return Answer(question=self, observations=tuple(observations), samples=tuple(samples), inquiry=inquiry)


@dataclass(slots=True, kw_only=True)
class Answer:
    """What an inquiry says of some steps."""

    question: Question
    observations: tuple[Observation, ...]
    samples: tuple[Sample, ...]
    inquiry: Inquiry
    _explanation: Explanation | None = field(default=None, init=False)

    @property
    def exact(self) -> list[Choices]:
        """The combinations that give every bit, the best first; none without any choice."""
        return [choices for choices in self.inquiry.best if self.inquiry.answers[choices].exact]

    @property
    def choices(self) -> Choices:
        """The plainest combination that gives every bit, or else the nearest; none where the plan itself does."""
        if self.inquiry.base.exact:
            return NOTHING
        return next(iter(self.exact or self.inquiry.best), NOTHING)

    @property
    def explains(self) -> bool:
        """Whether something gives every bit."""
        return self.inquiry.base.exact or bool(self.exact)

    def kept_by(self) -> dict[Observation, Values]:
        """What each step keeps for later ones, under what explains it, or as the plan has it."""
        choices = self.choices if self.explains else NOTHING
        kernels = self.inquiry.kernels
        return {
            step: kernels.kept_by(choices, sample) for step, sample in zip(self.observations, self.samples, strict=True)
        }

    @property
    def explanation(self) -> Explanation:
        """The answer as data."""
        if self._explanation is None:
            self._explanation = self._explained()
        return self._explanation

    def _explained(self) -> Explanation:
        inquiry, region, choices = self.inquiry, self.question.region, self.choices
        undecided = open_choices(inquiry.kernels, choices, self.samples, inquiry.memory.stop) if self.explains else ()
        return Explanation(
            node=region[-1].name,
            op=region[-1].op.name,
            nodes=tuple(member.name for member in region if member.name not in inquiry.replaced.recorded),
            forwards=numbers(self.observations),
            phases=tuple(dict.fromkeys(step.phase for step in self.observations)),
            elements=inquiry.base.elements,
            as_it_is=inquiry.base.equal,
            as_started=inquiry.base.exact,
            tried=len(inquiry.tried),
            calls=inquiry.kernels.calls,
            matches=() if inquiry.base.exact else inquiry.matches,
            open=undecided,
            settings=_settings(inquiry.replaced, choices, [step.phase for step in self.observations]),
            padding=_padding(inquiry, choices, self.samples) if self.explains else (0, 0),
            searched=not inquiry.stopped,
            left=None if self.explains or inquiry.stopped else self._remainder(choices),
            local_error=inquiry.base.local_error,
            extent=None if inquiry.base.exact else extent_of(inquiry.kernels, NOTHING, self.samples),
            orders=inquiry.orders,
        )

    def _remainder(self, choices: Choices) -> Left:
        """What the nearest choices leave."""
        return left_by(self.inquiry.kernels, _nearest(self.inquiry, choices), self.samples)


def _nearest(inquiry: Inquiry, best: Choices) -> Choices:
    """The best that was tried where it is near, else the plan itself."""
    has_name = best in inquiry.answers and is_near(inquiry.answers[best].equal, inquiry.base.equal)
    return best if has_name else NOTHING


def _padding(inquiry: Inquiry, choices: Choices, samples: Sequence[Sample]) -> tuple[int, int]:
    """Of how many tokens of padding these choices give other bits than were recorded, and how many there are."""
    differing = every = 0
    for sample in samples:
        if sample.real is not None:
            real, axis = sample.real
            apart = tokens_apart(sample.results, inquiry.kernels.with_padding(choices, sample), axis)
            differing += 0 if apart is None else int(((apart > 0) & ~real).sum())
            every += int((~real).sum())
    return differing, every


def _settings(replaced: Replaced, answer: Choices, phases: Sequence[Case]) -> tuple[tuple[str, str], ...]:
    """All choices that take effect at the nodes under an answer, as address and value; none that go by the phase."""
    bound = replaced.bound(answer)
    plans = {id(at): at for at in map(bound.at_phase, phases)}.values()
    first, *others = [dict.fromkeys(_in_effect(replaced, at)) for at in plans]
    return tuple(setting for setting in first if all(setting in of_plan for of_plan in others))


def _in_effect(replaced: Replaced, plan: Plan) -> Iterator[tuple[str, str]]:
    """The choices that take effect at the nodes, and those of what one of them hands to another."""
    names = {node.name for node in replaced.nodes}
    for node in replaced.nodes:
        if node.name not in replaced.recorded:
            yield from ((f"{node.name}:{name}", str(value)) for name, value in plan.active(node).items())
        for site, consumer in edges_of(plan.graph, node):
            if consumer in names:
                setting = plan.settings[node.name, f"{site}{EDGE}{consumer}"]
                yield f"{node.name}:{site}{EDGE}{consumer}", str(plan.resolved(node.name, setting.value))
