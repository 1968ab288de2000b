"""Which choice of the vocabulary a user's function made: every one is tried in its place, on its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from moeparity.bisection.divergence.observe import NodeRecord
from moeparity.bisection.nearest.report import ChoiceMatch, Nearest
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
    roots = (record.node.name for record in records.values() if record.is_root)
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
    region_sides = [name for name, region in regions.items() if region is not None]
    if len(region_sides) != 1:
        return None
    region, base = regions[region_sides[0]], sides[REFERENCE if region_sides[0] == CANDIDATE else CANDIDATE]
    assert region is not None
    search = _Search(plan, region, sides[region_sides[0]], base)
    singles: dict[Choices, BoundGraph] = {
        (choice,): bound for choice in choices(base.plan, region) for bound in _with(base.plan, (choice,))
    }
    as_it_is, scores = search.scores(singles)
    if not any(score.exact for score in scores.values()):
        leaders = [c for c in _ranked(scores) if scores[c].equal > as_it_is.equal][:PAIRED]
        pairs = [(*leader, *single) for leader in leaders for single in singles if leader[0][0] != single[0][0]]
        scores |= search.scores({pair: bound for pair in pairs for bound in _with(base.plan, pair)})[1]
    best = [c for c in _ranked(scores) if scores[c].exact] or _ranked(scores)[:SHOWN]
    return Nearest(
        node=node,
        call=region.call,
        tried=len(scores),
        as_it_is=as_it_is.equal,
        found=tuple(_choice_match(choice, scores[choice]) for choice in best),
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


def _with(plan: BoundGraph, combination: Choices) -> Iterator[BoundGraph]:
    """The plan with these values; nothing where an op refuses them."""
    overrides = {place: Setting(value=value, rule=plan.settings[place].rule) for place, value in combination}
    with suppress(SpecError):
        yield replace(plan, settings={**plan.settings, **overrides})


@dataclass(slots=True)
class _Score:
    """How a trial's values lie to the function's, over all ports and cells with equal inputs."""

    elements: int = 0
    equal_elements: int = 0
    ulps: float = 0.0
    all_bits: bool = True

    @property
    def exact(self) -> bool:
        """Whether every bit is equal, of at least one element."""
        return self.all_bits and self.elements > 0

    @property
    def equal(self) -> float:
        """The share of equal elements."""
        return self.equal_elements / self.elements if self.elements else 0.0

    @property
    def mean_ulp(self) -> float:
        """The mean distance in ulps; infinite without elements."""
        return self.ulps / self.elements if self.elements else math.inf

    def add(self, value: torch.Tensor, trial: torch.Tensor) -> None:
        """Count one tensor of the function's against the trial's; what cannot be compared is as far as can be."""
        self.elements += value.numel()
        self.all_bits &= same_bits(value, trial)
        if value.shape != trial.shape:
            self.ulps = math.inf
        elif value.is_floating_point() and trial.is_floating_point():
            error = compare(value, trial)
            self.equal_elements += error.equal
            self.ulps += math.inf if error.excluded else error.sum_ulp
        else:
            differ = int((value != trial).sum())
            self.equal_elements += value.numel() - differ
            self.ulps += differ


def _ranked(scores: Mapping[Choices, _Score]) -> list[Choices]:
    return sorted(scores, key=lambda choice: (-scores[choice].equal, scores[choice].mean_ulp))


def _choice_match(combination: Choices, score: _Score) -> ChoiceMatch:
    names = tuple(f"{node}:{attribute}={value}" for (node, attribute), value in combination)
    return ChoiceMatch(choices=names, equal=score.equal, mean_ulp=score.mean_ulp, exact=score.exact)


_FUNCTION, _BASE = "function", "base"


@dataclass(slots=True)
class _Comparison:
    """An observer: how each trial's values at one node lie to the function's, where the inputs are alike."""

    node: str
    trials: Sequence[Name]
    scores: dict[Name, _Score] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.node:
            return
        agree = view.inputs_agree(_FUNCTION, _BASE)
        offset = view.wave[0]
        for name in self.trials:
            score = self.scores.setdefault(name, _Score())
            for port in range(len(view.node.outputs)):
                value, trial = view.tensor(_FUNCTION, port), view.tensor(name, port)
                for (start, end), equal_inputs in zip(view.cells, agree, strict=True):
                    if equal_inputs:
                        score.add(value[start - offset : end - offset], trial[start - offset : end - offset])


@dataclass(slots=True)
class _Search:
    plan: Plan
    region: Region
    function: Side
    base: Side

    def scores(self, trials: Mapping[Choices, BoundGraph]) -> tuple[_Score, dict[Choices, _Score]]:
        """How the other side's plan lies to the function, and how each trial does; those refused are left out."""
        plan, base = self.plan, self.base
        sides = [walker(plan, _FUNCTION, self.function), walker(plan, _BASE, base)]
        mixtures = [walker(plan, choice, replace(base, plan=bound)) for choice, bound in trials.items()]
        as_it_is, scores = None, dict[Choices, _Score]()
        for run in plan.passes().try_all(sides, mixtures, self._observers, until=self.region.nodes[-1]):
            run_scores = self._scores(run)
            as_it_is = run_scores[_BASE]
            scores |= {choice: run_scores[choice] for choice in trials if choice in run_scores}
        if as_it_is is None:
            run = plan.passes().run(sides, self._observers([]), until=self.region.nodes[-1])
            as_it_is = self._scores(run)[_BASE]
        return as_it_is, scores

    def _observers(self, trials: Sequence[Walker]) -> list[_Comparison]:
        return [_Comparison(self.region.nodes[-1], [_BASE, *(trial.name for trial in trials)])]

    def _scores(self, run: Pass) -> dict[Name, _Score]:
        (comparison,) = run.observers
        assert isinstance(comparison, _Comparison)
        return comparison.scores
