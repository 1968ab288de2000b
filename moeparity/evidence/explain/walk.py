"""In which order nodes are explained: all are compared, then those that differ are searched, then the others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from moeparity.evidence.explain.inquiry import Memory
from moeparity.evidence.explain.observation import Observation, numbers
from moeparity.evidence.explain.observed import Recorded
from moeparity.evidence.explain.parts import Comparison, Load, Parts, compared, explained_in_parts
from moeparity.evidence.explain.report import UNSHOWN, Explanation, Unseen
from moeparity.evidence.explain.statements import as_number
from moeparity.evidence.explain.unlisted_orders import OrderBudget
from moeparity.inputs.weights.loaded import Loaded
from moeparity.inputs.weights.store import WeightStore
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_phases
from moeparity.plan.faults.plant import width_of
from moeparity.plan.graph import Node, Segment
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import Place, Setting
from moeparity.progress import Callback, Progress, Stop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """A node that is to be explained, with the steps that may show it."""

    node: Node
    steps: tuple[Observation, ...]

    @property
    def shaped(self) -> dict[Observation, str]:
        """In words, what a token has in a step in place of the node's values, where that has another shape."""
        words = {
            step: next((step.other_shapes[value] for value in self.node.values if value in step.other_shapes), "")
            for step in self.steps
        }
        return {step: sentence for step, sentence in words.items() if sentence}

    @property
    def shown(self) -> list[Observation]:
        """The steps whose values can be compared."""
        shaped, values = self.shaped, self.node.values
        known_values = [step for step in self.steps if all(value in step.values for value in values)]
        # Of a table that is made of positions alone there are faults that give it another width.
        return [step for step in known_values if step not in shaped or width_of(self.node) is not None]


def targets(plan: Plan, names: Collection[str], recorded: Recorded) -> list[Target]:
    """Some nodes with the steps that may show each, in the order of the graph."""
    steps, for_attention = recorded.in_cases(plan.phases), recorded.for_attention(plan.phases)
    return [
        Target(node=node, steps=for_attention if node.op.tokens.mixes else steps)
        for node in plan.graph.nodes
        if node.name in names
    ]


def loader(weights: WeightStore, dtypes: tuple[str, ...]) -> Load:
    """Gives the weights of some nodes, and reads no others."""

    def load(names: Collection[str]) -> Loaded:
        nodes = tuple(node for node in weights.graph.nodes if node.name in names)
        return weights.load(Segment(name=" ".join(sorted(names)), nodes=nodes), dtypes).beside()

    return load


@dataclass(slots=True, kw_only=True)
class Walk:
    """Explains one node after the other.

    work: what the search for one kind of node may cost. stop: when all searches end. checkpoints: folders of other
    checkpoints; a node may have had the weights of one of them. orders: the time for orders that no file lists; None:
    none are searched.
    as_given: the nodes that were computed anew for values of which the plan gave every bit from the start. answered:
    those, and all whose values were explained since.
    """

    plan: Plan
    weights: WeightStore
    progress: Callback | None
    stop: Stop
    work: float
    checkpoints: Sequence[str] = ()
    orders: OrderBudget | None = None
    nodes: list[Explanation] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    memories: dict[tuple[str, ...], Memory] = field(default_factory=dict)
    as_given: frozenset[str] = frozenset()
    answered: set[str] = field(default_factory=set)

    def explain(self, targets: Sequence[Target]) -> None:
        """Explain all of them, which stand in the order of the graph.

        First every node is compared under the plan. Then those that differ are searched, those that go along with
        others behind these, and the cheap ones first; then what the values leave open at the others.
        """
        start_plan, comparisons = self.plan, list(self._compared(targets))
        differing = [(target, comparison) for target, comparison in comparisons if not comparison.is_equal]
        equal = [(target, comparison) for target, comparison in comparisons if comparison.is_equal]
        self.as_given = frozenset().union(*(comparison.regions for _, comparison in equal))
        self.answered |= self.as_given
        words = f"{len(differing)} of {len(targets)} nodes differ"
        for number, target in enumerate(_in_turn(differing)):
            explained = len({answer.node for answer in self.nodes if answer.explained})
            self._tell("searching", f"{target.node.name}, {words}, {explained} explained", number, len(differing))
            self._explain(target)
        for number, (target, _) in enumerate(equal):
            self._tell("what is open", f"{target.node.name}, {words}", number, len(equal))
            self._explain(target, same=self.plan is start_plan)
        order = {target.node.name: number for number, target in enumerate(targets)}
        self.nodes.sort(key=lambda answer: order[answer.node])
        self.unseen.sort(key=lambda unseen: order[unseen.node])

    def _tell(self, step: str, at: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(Progress(step=step, at=at, done=done, total=total, work=done, unit="nodes"))

    def _compared(self, targets: Sequence[Target]) -> Iterator[tuple[Target, Comparison]]:
        """Each node under the plan as it is."""
        differ = 0
        for number, target in enumerate(targets):
            self._tell("comparing", f"{target.node.name}, {differ} differ so far", number, len(targets))
            with torch.inference_mode():
                comparison = compared(self.plan, target.node.name, target.shown, self._load)
            differ += not comparison.is_equal
            yield target, comparison

    @property
    def _load(self) -> Load:
        return loader(self.weights, self.plan.dtypes)

    def _explain(self, target: Target, *, same: bool = False) -> None:
        node, shaped, shown = target.node, target.shaped, target.shown
        with torch.inference_mode():
            parts = explained_in_parts(
                self.plan,
                node.name,
                shown,
                self._load,
                self.memories,
                self.answered,
                self.work,
                self.stop,
                self.checkpoints,
                self.orders,
                same=same,
            )
        self.nodes += (_shaped(answer, shaped) for answer in parts.explanations)
        self.nodes += _of_other_shapes(node, [step for step in shaped if step not in shown], shaped)
        self.unseen += (*parts.unseen, *_hidden(target))
        self._learn(parts)

    def _learn(self, parts: Parts) -> None:
        """Use the answers for a node at later ones, in two cases: for what the node hands on to them, and for what all
        layers share, which was computed once.
        """
        answers = parts.explanations
        changes: dict[Case, dict[Place, Setting]] = {}
        for answer in answers:
            others = {phase for further in answers if further is not answer for phase in further.phases}
            for phase in (phase for phase in answer.phases if answer.explained and phase not in others):
                changes[phase] = self._handed_on(answer, self.plan.at_phase(phase))
        if any(changes.values()):
            self.plan = in_phases(self.plan, changes)
        if answers and all(answer.explained for answer in answers):
            self.answered |= {name for answer in answers for name in answer.nodes}

    def _handed_on(self, answer: Explanation, plan: Plan) -> dict[Place, Setting]:
        """What an explanation says, otherwise than the plan, of choices that other nodes go along with, and of what all
        layers share.
        """
        told_names = {name for node in self.plan.graph.nodes for name in node.op.choices_elsewhere}
        shared = {node.name for node in self.plan.graph.nodes if node.layer is None} - self.as_given
        places = {tuple(address.rsplit(":", 1)): value for address, value in answer.settings}
        return {
            (node, name): Setting(value=as_number(value), rule=None)
            for (node, name), value in places.items()
            if (name in told_names or node in shared)
            and ((node, name) not in plan.settings or _value(plan, (node, name)) != value)
        }


def _value(plan: Plan, place: Place) -> str:
    """What a plan sets at a place, as text."""
    return str(plan.resolved(place[0], plan.settings[place].value))


def _in_turn(differing: Sequence[tuple[Target, Comparison]]) -> list[Target]:
    """Nodes that differ in the order in which they are searched: those that go along with what another one of them
    computes come behind it, and of the others those come first whose kernels take least.
    """
    depths: dict[str, int] = {}
    for target, comparison in differing:
        before = {name for name in comparison.makers | comparison.regions if name != target.node.name}
        at = [
            depths[earlier.node.name] for earlier, of_earlier in differing[: len(depths)] if before & of_earlier.regions
        ]
        depths[target.node.name] = 1 + max(at, default=-1)
    ranked = sorted(differing, key=lambda pair: (depths[pair[0].node.name], pair[1].work))
    return [target for target, _ in ranked]


def _hidden(target: Target) -> Iterator[Unseen]:
    """That a node is not shown, in all steps or in some."""
    hidden = [step for step in target.steps if step not in target.shown and step not in target.shaped]
    if len(hidden) == len(target.steps):
        yield Unseen(node=target.node.name, reason=UNSHOWN)
    elif hidden:
        yield Unseen(node=target.node.name, reason=UNSHOWN, forwards=numbers(hidden))


def _of_other_shapes(
    node: Node, steps: Sequence[Observation], shaped: Mapping[Observation, str]
) -> Iterator[Explanation]:
    """What is said of steps in which a node's values have another shape: their bits are compared with nothing."""
    for words in dict.fromkeys(shaped[step] for step in steps):
        alike = [step for step in steps if shaped[step] == words]
        yield Explanation(
            node=node.name,
            op=node.op.name,
            nodes=(node.name,),
            forwards=numbers(alike),
            phases=tuple(dict.fromkeys(step.phase for step in alike)),
            elements=0,
            as_it_is=0.0,
            as_started=False,
            tried=0,
            calls=0,
            other_shape=words,
        )


def _shaped(answer: Explanation, shaped: Mapping[Observation, str]) -> Explanation:
    """An answer to values of another shape: what nothing explains has no distance from what is computed."""
    words = next((words for step, words in shaped.items() if step.number in answer.forwards), "")
    return answer if answer.explained or not words else replace(answer, left=None, other_shape=words)
