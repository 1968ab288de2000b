"""Searches for the known choices of users' functions, on the values of the pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.determinism.data import Determinism
from moeparity.bisection.nearest.data import Nearest, NearestAnswers
from moeparity.bisection.study import Study
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.evidence.explain.inquiry import Inquiry, Memory
from moeparity.evidence.explain.replaced import Replaced
from moeparity.evidence.explain.report import ChoiceMatch, NumberRange
from moeparity.evidence.explain.sample import Sample
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import case_of
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True, kw_only=True)
class Question:
    """The search for one user's function, at the last node that it computes, on the micro-batches on which it was
    called.

    walkers: names of walkers; the values of the first one that ran are looked at. other_side: the walker that runs the
    other side's kernels on the same inputs as the first of `walkers`.
    """

    region: Region
    walkers: tuple[str, ...]
    other_side: str
    inquiry: Inquiry

    def lies_beside(self, node: Node) -> bool:
        """Whether a node is in the same segment, so that its weights are in memory together with this one's."""
        return node.name in self.inquiry.replaced.segment

    def see(self, view: NodeView) -> None:
        """Look at a wave of the region's last node."""
        self.inquiry.kernels.loaded = view.loaded.beside()
        same = self._gives_the_others_bits(view)
        for sample in self._samples(view):
            self.inquiry.meet(sample, same=same)

    @property
    def result(self) -> Nearest | None:
        """The answer so far; None if the function gives the same bits as the other side's kernels."""
        inquiry = self.inquiry
        if inquiry.base.exact or not inquiry.base.elements:
            return None
        return Nearest(
            node=self.region.nodes[-1],
            call=self.region.call,
            tried=len(inquiry.tried),
            calls=inquiry.kernels.calls,
            as_it_is=inquiry.base.equal,
            found=inquiry.matches,
        )

    def _samples(self, view: NodeView) -> Iterator[Sample]:
        """The micro-batches of a wave, with inputs and results as the function had them."""
        walker = next((walker for walker in self.walkers if view.ran(walker)), None)
        if walker is None:
            return
        ports = range(len(view.node.outputs))
        for blocks in zip(*(view.outputs[walker][port] for port in ports), strict=True):
            batch = blocks[0].batch
            turn = next(turn for turn in view.turns[walker] if turn.batch is batch)
            if turn.source is not None:
                # The values were copied from other tokens; the function was not called for them.
                continue
            entering = [assemble(value, batch) for value in view.inputs[walker] if value is not None]
            yield Sample(
                values=dict(zip(self.region.inputs, entering, strict=True)),
                results=tuple(block.tensor for block in blocks),
                phase=case_of(self.inquiry.replaced.plan.phases, turn.sizes) or turn.phase,
            )

    def _gives_the_others_bits(self, view: NodeView) -> bool:
        """Whether, in the pass itself, the other side's kernels gave the same bits on the same inputs."""
        if not self.walkers or self.other_side in view.regions or not view.ran(self.other_side, self.walkers[0]):
            return False
        ports = len(view.node.outputs)
        ids = ([cell[:ports] for cell in view.output_ids(name)] for name in (self.other_side, self.walkers[0]))
        return next(ids) == next(ids)


@dataclass(slots=True)
class NearestChoices(SectionObserver):
    """Runs every question at its function's last node, and frees a question's memory when its segment ends."""

    questions: Sequence[Question]
    _open: list[Question] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for question in [q for q in self._open if not q.lies_beside(view.node)]:
            question.inquiry.forget()
            self._open.remove(question)
        for question in self.questions:
            if question.region.nodes[-1] == view.node.name:
                question.see(view)
                self._open += [] if question in self._open else [question]

    @property
    def result(self) -> tuple[Nearest, ...]:
        """The answers, in the order of the pass; functions with the bits of the other side's kernels have none."""
        return tuple(answer for question in self.questions if (answer := question.result) is not None)


def observer(study: Study, trials: Trials) -> NearestChoices | None:
    """The observer; None if no user's function runs, or if nothing but the two sides is run."""
    return NearestChoices(questions(study)) if study.functions and study.attribution else None


def questions(study: Study) -> list[Question]:
    """A question for each user's function, in the order of the nodes; none if both sides run the same function
    there.
    """
    sides = {name: side.plan for name, side in study.sides.items()}
    others = {REFERENCE: CANDIDATE, CANDIDATE: REFERENCE}
    memories: dict[str, Memory] = {}
    asking = []
    for node in study.model.graph.nodes:
        for name, plan_of_side in sides.items():
            region, base = plan_of_side.region(node.name), sides[others[name]]
            base_region = base.region(node.name)
            if region is None or (
                base_region is not None and (base_region.call, base_region.nodes) == (region.call, region.nodes)
            ):
                continue
            walkers = (SHADOW,) if name == CANDIDATE else ()
            asking.append(
                Question(
                    region=region,
                    walkers=(*walkers, name) if _readable(region, base, plan_of_side) else walkers,
                    other_side=REFERENCE if name == CANDIDATE else SHADOW,
                    inquiry=Inquiry(
                        replaced=Replaced.of(region.nodes, base, plan_of_side),
                        memory=memories.setdefault(region.call, Memory()),
                    ),
                )
            )
    return asking


def _readable(region: Region, plan: Plan, maker: Plan) -> bool:
    """Whether the kernels of `plan` may read what `maker` hands a region.

    They may if its inputs are whole values, and were made under choices that the region's nodes expect
    (`choices_elsewhere`).
    """
    nodes = [node for node in plan.graph.nodes if node.name in region.nodes]
    pairs = [
        (plan.told_to(node)[name], maker.told_to(node)[name])
        for node in nodes
        for name, by in node.op.choices_elsewhere.items()
        if dict(zip(node.ports, node.inputs, strict=True)).get(by.port) in region.inputs
    ]
    return all(a == b for a, b in pairs) and all(plan.partials[value] == 1 for value in region.inputs)


NEAREST: Final[Watch[tuple[Nearest, ...]]] = Watch("nearest", observer, (Nearest, ChoiceMatch, NumberRange))


def measure(of: Context) -> NearestAnswers:
    """The answers; empty if no user's function runs. Functions that are not deterministic have none."""
    unsteady = {(unstable.call, unstable.node) for unstable in of[Determinism].not_deterministic}
    answers = of.observed.of_watch(NEAREST) or ()
    return NearestAnswers(nearest=tuple(answer for answer in answers if (answer.call, answer.node) not in unsteady))


MEASURE = Measure(gives=NearestAnswers, measure=measure, needs=(Determinism,), watch=NEAREST)
