"""Explains a node whose forwards were not all computed alike: which forwards go together, and which choices give each
part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from moeparity.errors import TraceError, listed
from moeparity.evidence.explain.explain import Answer, KeptBy, Question
from moeparity.evidence.explain.inquiry import WORK, Memory
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.observation import Observation, entering_values, numbers, region_of
from moeparity.evidence.explain.replaced import Choices, read_earlier
from moeparity.evidence.explain.report import Explanation, Unseen
from moeparity.evidence.explain.sample import Sample, Values
from moeparity.evidence.explain.score import Score
from moeparity.evidence.explain.tries import NOTHING, scored
from moeparity.evidence.explain.unlisted_orders import OrderBudget
from moeparity.inputs.weights.loaded import Loaded
from moeparity.plan.address import role
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.progress import Stop

Load = Callable[[Collection[str]], Loaded]
"""Gives the weights of some nodes."""
Regions = dict[tuple[str, ...], tuple[tuple[Node, ...], list[Observation]]]


@dataclass(slots=True, kw_only=True)
class Comparison:
    """How near a plan's own kernels come to a node's recorded values. `work` is what their calls cost; `regions` are
    the nodes that were computed, `makers` others whose choices go along with theirs.
    """

    score: Score = field(default_factory=Score)
    work: float = 0.0
    regions: set[str] = field(default_factory=set)
    makers: set[str] = field(default_factory=set)

    @property
    def is_equal(self) -> bool:
        """Whether every bit is equal, of whatever was compared."""
        return self.score.exact or not self.score.elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is said of a node: an explanation for each part of its forwards, and of which it cannot be explained."""

    explanations: tuple[Explanation, ...] = ()
    unseen: tuple[Unseen, ...] = ()


def compared(plan: Plan, node: str, observations: Sequence[Observation], load: Load) -> Comparison:
    """The plan's own kernels held to a node's recorded values; nothing is searched."""
    regions, _ = _regions(plan, node, observations)
    comparison = Comparison()
    loaded = _loaded(regions, load)
    for region, steps in regions.values():
        question = Question(plan=plan, region=region, loaded=loaded, memory=Memory())
        samples = question.samples(steps)
        kernels = question.inquiry(samples).kernels
        comparison.score.add(scored(kernels, NOTHING, samples))
        comparison.work += kernels.work
        comparison.regions |= {member.name for member in region}
        comparison.makers |= {name for name, _ in kernels.replaced.makers}
    return comparison


def is_shown(plan: Plan, node: str, observations: Sequence[Observation]) -> bool:
    """Whether some step shows the node's values, and what they can be computed from."""
    return bool(_regions(plan, node, observations)[0])


def explained_in_parts(
    plan: Plan,
    node: str,
    observations: Sequence[Observation],
    load: Load,
    memories: dict[tuple[str, ...], Memory],
    known_nodes: Collection[str] = (),
    work: float = WORK,
    stop: Stop | None = None,
    checkpoints: Sequence[str] = (),
    orders: OrderBudget | None = None,
    *,
    same: bool = False,
) -> Parts:
    """Which choices give a node's recorded values. One answer for all forwards is tried first. If there is none, the
    forwards that the plan already gives are left as they are and the others explained, or each phase by itself.

    memories: what earlier searches found, by the names of a region's nodes without their layer; each search may spend
    `work`, and `stop` ends it sooner. checkpoints: other folders whose weights the program may hold. orders: what may
    be spent on orders that no file lists. same: whether the plan is known to give every bit.
    """
    stop = stop or Stop()
    regions, reasons = _regions(plan, node, observations)
    answers: list[Answer] = []
    loaded = _loaded(regions, load)
    for region, steps in regions.values():
        new_memory = Memory(work=work, stop=stop, checkpoints=checkpoints, orders=orders)
        memory = memories.setdefault(tuple(role(member.name) for member in region), new_memory)
        question = Question(plan=plan, region=region, loaded=loaded, memory=memory, known_nodes=known_nodes)
        answers += [question.answer(steps, same=True)] if same else _answers(question, steps)
    return Parts(
        explanations=tuple(answer.explanation for answer in answers),
        unseen=tuple(Unseen(node=node, reason=reason, forwards=numbers(steps)) for reason, steps in reasons.items()),
    )


def _loaded(regions: Regions, load: Load) -> Loaded:
    """The weights of the nodes of all regions."""
    return load({member.name for region, _ in regions.values() for member in region})


def _regions(
    plan: Plan, node: str, observations: Iterable[Observation]
) -> tuple[Regions, dict[str, list[Observation]]]:
    """The steps by what has to be computed anew in them, and those in which something is missing, by the reason."""
    regions: Regions = {}
    reasons: dict[str, list[Observation]] = {}
    for step in observations:
        try:
            region = region_of(plan.at_phase(step.phase), node, set(step.values))
            _refuse_other_shapes(region, step)
            _refuse_missing_keys(region, step)
            step.sample(region)
        except TraceError as error:
            reasons.setdefault(f"{error} {step.unknown}".rstrip(), []).append(step)
        else:
            names = tuple(member.name for member in region)
            regions.setdefault(names, (region, []))[1].append(step)
    return regions, reasons


def _refuse_other_shapes(region: tuple[Node, ...], step: Observation) -> None:
    """Raises TraceError where a node is made of what this step has in another shape: it is not computed anew."""
    for member in region[:-1]:
        reshaped = next((value for value in member.values if value in step.other_shapes), None)
        if reshaped is not None:
            raise TraceError(f"{region[-1].name}: made of {reshaped}, which has {step.other_shapes[reshaped]}.")


def _refuse_missing_keys(region: tuple[Node, ...], step: Observation) -> None:
    """Raises TraceError where a step before this one has not what its keys are made of."""
    closing, entering = region[-1], entering_values(region)
    read = {value for member in region for value in read_earlier(member)}
    made_of = [
        value for member in region if not member.op.tokens.history for value in member.inputs if value in entering
    ]
    for earlier in step.earlier:
        missing = [value for value in (*(v for v in read if v in entering), *made_of) if value not in earlier.values]
        needed = [value for value in missing if value in step.values]
        if needed:
            raise TraceError(
                f"{closing.name}: the trace has no whole {listed(sorted(needed))} of forward {earlier.number}, whose "
                "keys this step reads."
            )


def _answers(question: Question, steps: Sequence[Observation]) -> list[Answer]:
    """What gives the values of steps whose region is one: of all of them together, or of parts."""
    started, others = _as_started(question, steps)
    if started and others:
        return _beside(question, started, others)
    answer = question.answer(steps)
    if answer.explains or len({step.phase for step in steps}) == 1:
        return [answer]
    by_phase = _by_phase(question, steps)
    return by_phase if any(part.explains for part in by_phase) else [answer]


def _as_started(question: Question, steps: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """The steps whose bits the plan itself gives, and the others."""
    samples = question.samples(steps)
    kernels = question.inquiry(samples).kernels
    pairs = [(step, _gives(kernels, NOTHING, sample)) for step, sample in zip(steps, samples, strict=True)]
    return [step for step, same in pairs if same], [step for step, same in pairs if not same]


def _by_phase(question: Question, steps: Sequence[Observation]) -> list[Answer]:
    """The steps of each phase by themselves, against what those before kept."""
    kept_by: dict[Observation, Values] = {}
    answers = []
    for phase in dict.fromkeys(step.phase for step in steps):
        answers.append(question.answer([step for step in steps if step.phase == phase], kept_by))
        kept_by |= answers[-1].kept_by()
    return answers


def _beside(question: Question, started: Sequence[Observation], others: Sequence[Observation]) -> list[Answer]:
    """Steps that the plan gives, and others that it does not."""
    plain_answer = question.answer(started)
    kept_by = plain_answer.kept_by()
    answer = question.answer(others, kept_by)
    if answer.explains:
        together = _together(question, [*started, *others], answer)
        return [plain_answer, answer] if together is None else [together]
    return _from_the_first(question, started, others, kept_by) or [plain_answer, answer]


def _together(question: Question, steps: Sequence[Observation], answer: Answer) -> Answer | None:
    """All steps under those of the answer's choices that give them all; None where none does."""
    in_order = sorted(steps, key=lambda step: step.number)
    samples = question.samples(in_order)
    inquiry = question.inquiry(samples)
    for choices in answer.exact:
        score = scored(inquiry.kernels, choices, samples)
        if score.exact:
            inquiry.answers[choices] = score
    if not inquiry.answers:
        return None
    inquiry.base.add(scored(inquiry.kernels, NOTHING, samples))
    inquiry.tried, inquiry.kernels.calls = answer.inquiry.tried, answer.inquiry.kernels.calls + inquiry.kernels.calls
    return Answer(question=question, observations=tuple(in_order), samples=tuple(samples), inquiry=inquiry)


def _from_the_first(
    question: Question, started: Sequence[Observation], others: Sequence[Observation], kept_by: KeptBy
) -> list[Answer]:
    """Answers for all steps, by an answer for the first of the other steps alone: what that step kept in the cache may
    be all that is wrong with the steps behind it. Empty where some step has other bits still.
    """
    first, *behind = others
    alone = question.answer([first], kept_by) if behind else None
    if alone is None or not alone.explains:
        return []
    plain, like_it = list(started), [first]
    kept_values = {**kept_by, **alone.kept_by()}
    for step in behind:
        (sample,) = question.samples([step], kept_values)
        kernels = question.inquiry([sample]).kernels
        choices = next((c for c in (NOTHING, alone.choices) if _gives(kernels, c, sample)), None)
        if choices is None:
            return []
        (like_it if choices else plain).append(step)
        kept_values[step] = kernels.kept_by(choices, sample)
    return [question.answer(plain, kept_values), question.answer(like_it, kept_values)]


def _gives(kernels: Kernels, choices: Choices, sample: Sample) -> bool:
    return scored(kernels, choices, [sample]).exact
