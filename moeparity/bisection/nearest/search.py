"""Which choice of the vocabulary a user's function made: every one is tried in its place, on its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from moeparity.bisection.divergence.observe import NodeRecord
from moeparity.bisection.nearest.report import Named, Nearest
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import walker
from moeparity.engine.lockstep import NodeView
from moeparity.engine.passes import Pass
from moeparity.engine.walker import Name, Walker
from moeparity.errors import SpecError
from moeparity.metrics.divergence import compare
from moeparity.numerics.bits import same_bits
from moeparity.ops.declaration import Attribute, Value
from moeparity.plan.bind import BoundGraph, Place, Setting
from moeparity.plan.region import Region
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.progress import Callback

PAIRED = 2
"""So many of the best choices are tried with each other one, where none gives all bits alone."""

SHOWN = 3
"""So many choices are told where none gives all bits."""


def search(plan: Plan, observed: Observed, progress: Callback | None) -> tuple[Nearest, ...] | None:
    """The choices nearest to users' functions, at every root; None where none runs, or only the two sides do."""
    if not (plan.functions and plan.attribution):
        return None
    records: Mapping[str, NodeRecord] = observed.sections["divergence"]
    roots = (record.node.name for record in records.values() if record.root_sequences)
    return tuple(answer for root in roots if (answer := nearest(plan, root)) is not None)


def nearest(plan: Plan, node: str) -> Nearest | None:
    """The choices nearest to the user's function that closes at a root `node`; None where no function of one side does.

    Each known value of each attribute of the nodes that the function replaces is set alone on the other side's plan.
    All are walked up to `node`, as many in a pass as memory allows, and compared on the sequences on which the
    function's inputs have the other side's bits. Where none gives every bit, the best are tried with each other one.
    Raises what the pass raises.
    """
    sides = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    regions = {name: side.plan.region(node) for name, side in sides.items()}
    own = [name for name, region in regions.items() if region is not None]
    if len(own) != 1:
        return None
    region, base = regions[own[0]], sides[REFERENCE if own[0] == CANDIDATE else CANDIDATE]
    assert region is not None
    search = _Search(plan, region, sides[own[0]], base)
    singles: dict[Choices, BoundGraph] = {
        (choice,): bound for choice in choices(base.plan, region) for bound in _with(base.plan, (choice,))
    }
    as_it_is, scores = search.scores(singles)
    if not any(score.exact for score in scores.values()):
        better = [c for c in _ranked(scores) if scores[c].equal > as_it_is.equal][:PAIRED]
        both = [(*one, *other) for one in better for other in singles if one[0][0] != other[0][0]]
        scores |= search.scores({pair: bound for pair in both for bound in _with(base.plan, pair)})[1]
    best = [c for c in _ranked(scores) if scores[c].exact] or _ranked(scores)[:SHOWN]
    return Nearest(
        node=node,
        call=region.call,
        tried=len(scores),
        as_it_is=as_it_is.equal,
        found=tuple(_named(choice, scores[choice]) for choice in best),
    )


Choice = tuple[Place, Value]
Choices = tuple[Choice, ...]


def choices(plan: BoundGraph, region: Region) -> Iterator[Choice]:
    """Every single value that would make one of a region's nodes compute otherwise."""
    nodes = {node.name: node for node in plan.graph.nodes}
    for name in region.nodes:
        active = plan.active(nodes[name])
        for attribute in nodes[name].attributes:
            for value in _values(attribute):
                if attribute.name in active and active[attribute.name] != plan.resolved(name, value):
                    yield (name, attribute.name), value


def _values(attribute: Attribute) -> tuple[Value, ...]:
    if attribute.kind == "placement":
        return ()
    words = tuple(value for value in attribute.values if value != "model")
    return (*words, *attribute.usual)


def _with(plan: BoundGraph, chosen: Choices) -> Iterator[BoundGraph]:
    """The plan with these values; nothing where an op refuses them."""
    own = {place: Setting(value=value, rule=plan.settings[place].rule) for place, value in chosen}
    with suppress(SpecError):
        yield replace(plan, settings={**plan.settings, **own})


@dataclass(slots=True)
class _Score:
    """How a trial's values lie to the function's, over all ports and cells with equal inputs."""

    elements: int = 0
    same: int = 0
    ulps: float = 0.0
    same_bits: bool = True

    @property
    def exact(self) -> bool:
        return self.same_bits and self.elements > 0

    @property
    def equal(self) -> float:
        return self.same / self.elements if self.elements else 0.0

    @property
    def mean_ulp(self) -> float:
        return self.ulps / self.elements if self.elements else math.inf

    def add(self, own: torch.Tensor, trial: torch.Tensor) -> None:
        """Count one tensor of the function's against the trial's; what cannot be compared is as far as can be."""
        self.elements += own.numel()
        self.same_bits &= same_bits(own, trial)
        if own.shape != trial.shape:
            self.ulps = math.inf
        elif own.is_floating_point() and trial.is_floating_point():
            error = compare(own, trial)
            self.same += error.equal
            self.ulps += math.inf if error.excluded else error.sum_ulp
        else:
            differ = int((own != trial).sum())
            self.same += own.numel() - differ
            self.ulps += differ


def _ranked(scores: Mapping[Choices, _Score]) -> list[Choices]:
    return sorted(scores, key=lambda choice: (-scores[choice].equal, scores[choice].mean_ulp))


def _named(chosen: Choices, score: _Score) -> Named:
    told = tuple(f"{node}:{attribute}={value}" for (node, attribute), value in chosen)
    return Named(choices=told, equal=score.equal, mean_ulp=score.mean_ulp, exact=score.exact)


_FUNCTION, _BASE = "function", "base"


@dataclass(slots=True)
class _Compared:
    """An observer: how each trial's values at one node lie to the function's, where the inputs are alike."""

    node: str
    trials: Sequence[Name]
    scores: dict[Name, _Score] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.node:
            return
        agree = view.inputs_agree(_FUNCTION, _BASE)
        first = view.wave[0]
        for name in self.trials:
            score = self.scores.setdefault(name, _Score())
            for port in range(len(view.node.outputs)):
                own, trial = view.tensor(_FUNCTION, port), view.tensor(name, port)
                for (start, end), alike in zip(view.cells, agree, strict=True):
                    if alike:
                        score.add(own[start - first : end - first], trial[start - first : end - first])


@dataclass(slots=True)
class _Search:
    plan: Plan
    region: Region
    function: Side
    base: Side

    def scores(self, trials: Mapping[Choices, BoundGraph]) -> tuple[_Score, dict[Choices, _Score]]:
        """How the other side's plan lies to the function, and how each trial does; those refused are left out."""
        plan, base = self.plan, self.base
        always = [walker(plan, _FUNCTION, self.function), walker(plan, _BASE, base)]
        tried = [walker(plan, choice, replace(base, plan=bound)) for choice, bound in trials.items()]
        as_it_is, scores = None, dict[Choices, _Score]()
        for finished in plan.passes().try_all(always, tried, self._observing, until=self.region.nodes[-1]):
            compared = self._compared(finished)
            as_it_is = compared[_BASE]
            scores |= {choice: compared[choice] for choice in trials if choice in compared}
        if as_it_is is None:
            alone = plan.passes().run(always, self._observing([]), until=self.region.nodes[-1])
            as_it_is = self._compared(alone)[_BASE]
        return as_it_is, scores

    def _observing(self, trials: Sequence[Walker]) -> list[_Compared]:
        return [_Compared(self.region.nodes[-1], [_BASE, *(trial.name for trial in trials)])]

    def _compared(self, finished: Pass) -> dict[Name, _Score]:
        (compared,) = finished.observers
        assert isinstance(compared, _Compared)
        return compared.scores
