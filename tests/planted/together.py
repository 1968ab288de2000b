"""Many candidates with one planted value each, bisected in one pass: each sees what its own walkers do, nothing else.

Candidates of one checkpoint on the same tokens share all that lies before their planted nodes. Each has a reference and
trials of its own, and walks under a name of its own; `observe`'s observers and `summarise` meet one of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from moeparity.bisection.measures import summarise
from moeparity.bisection.observe import Observation
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.bisection.study import Study
from moeparity.engine.lockstep import run
from moeparity.engine.memory import Memory
from moeparity.engine.routes import Forced
from moeparity.engine.view import NodeView, Observer
from moeparity.engine.walker import Walker, WalkerName
from moeparity.errors import Where
from moeparity.ops.requests import REQUESTS
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.sides import Side, bound_side
from moeparity.plan.spec.variant_schema import Variant
from moeparity.plan.toggles import toggles
from tests.opened import opened
from tests.planted.places import PROFILE, Sides, plant, random_tokens, requests_for, write_recipe
from tests.planted.values import VALUES, Group, drawn_shape

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """One candidate: where its value was planted, its plan, and its report."""

    sides: Sides
    study: Study
    report: Report


def bisected_together(group: Group, checkpoint: Path, folder: Path) -> dict[str, Bisected]:
    """By label, the bisection of each value of a group."""
    base = _prepared(group, checkpoint, folder)
    sides = {label: plant(VALUES[label], base.model) for label in group}
    bound = binder(base)
    studies = {label: planted_study(base, bound, variants_of(base, sides[label])) for label in group}
    reports = walked_together(base, studies)
    return {label: Bisected(sides=sides[label], study=studies[label], report=reports[label]) for label in group}


def walked_together(base: Study, studies: Mapping[str, Study]) -> dict[str, Report]:
    """By label, the report of each of these plans, all of them of the checkpoint and the tokens of `base`."""
    passes = {label: Observation.of(study, study.toggles) for label, study in studies.items()}
    walkers = [_renamed(walker, label) for label, walked in passes.items() for walker in walked.walkers]
    observers = [_Restricted(label, walked.walkers, walked.observers) for label, walked in passes.items()]
    tokens = base.tokens
    counts = run(walkers, base.model.weights, tokens.input_ids, observers, attention_mask=tokens.attention_mask)
    # What a pass takes is none of these tests' business.
    nothing = Memory(estimated=0, held_before=None, peak=None)
    return {label: summarise(studies[label], walked.observed(counts, nothing, 0.0)) for label, walked in passes.items()}


def _prepared(group: Group, checkpoint: Path, folder: Path) -> Study:
    """The recipe of a group, in which nothing is planted."""
    sequences, tokens, micro_batch = drawn_shape(group)
    vocab, side = opened(checkpoint).vocab_size, {"micro_batch": micro_batch}
    ids = random_tokens(sequences, tokens, vocab=vocab)
    asks = any(VALUES[label].attribute in REQUESTS for label in group)
    requests = requests_for(ids, vocab) if asks else ()
    path = write_recipe(folder, checkpoint, {"input_ids": ids}, side, side, requests=requests)
    return prepare(path, device="cpu", opener=opened)


def variants_of(base: Study, sides: Sides) -> list[Variant]:
    """Both sides of a recipe with these values in it."""
    micro_batch = base.recipe.reference.micro_batch
    return [Variant(profile=PROFILE, micro_batch=micro_batch, set={**values}) for values in sides.sets]


def planted_study(base: Study, bound: Callable[[Variant], Side], variants: Sequence[Variant]) -> Study:
    """What `prepare` makes of the same recipe with these sides, reference and candidate."""
    reference, candidate = map(bound, variants)
    return replace(
        base,
        recipe=base.recipe.model_copy(update={"reference": variants[0], "candidate": variants[1]}),
        reference=reference,
        candidate=candidate,
        toggles=tuple(toggles(reference, candidate, base.recipe.by)),
    )


def binder(base: Study) -> Callable[[Variant], Side]:
    """Binds a variant as `prepare` does; of many candidates the references are one."""
    where, sequences = Where(base.path), len(base.tokens.input_ids)
    profile = load_profile(PROFILE, where)
    sides: dict[tuple[object, ...], Side] = {}

    def bound(variant: Variant) -> Side:
        values = (*variant.set.items(), *(impl.call for impl in variant.impl))
        if values not in sides:
            sides[values] = bound_side(base.model.graph, variant, profile, base.model.dtype, where, sequences)
        return sides[values]

    return bound


def _renamed(walker: Walker, label: str) -> Walker:
    """The same walker under a name of its candidate's own."""
    followed = None if walker.inputs_of is None else (label, walker.inputs_of)
    forced = walker.routes
    routes = replace(forced, of=(label, forced.of)) if isinstance(forced, Forced) else forced
    return replace(walker, name=(label, walker.name), inputs_of=followed, routes=routes)


class _Restricted:
    """Shows the observers of one candidate its own walkers, under the names it gave them."""

    def __init__(self, label: str, walkers: Iterable[Walker], observers: Sequence[Observer]) -> None:
        self.names = {walker.name: (label, walker.name) for walker in walkers}
        self.own_names = {full: name for name, full in self.names.items()}
        self.observers = observers

    def see(self, view: NodeView) -> None:
        own_view = replace(
            view,
            outputs=self._own_values(view.outputs),
            inputs=self._own_values(view.inputs),
            active=self._own_values(view.active),
            regions=self._own_values(view.regions),
            turns=self._own_values(view.turns),
            # Asked for at regions only, and there are as many as candidates.
            entered={
                (self.own_names[walker], value): ids
                for (walker, value), ids in (view.entered.items() if view.regions else ())
                if walker in self.own_names
            },
            again=lambda name: view.again(self.names[name]),
        )
        for observer in self.observers:
            observer.see(own_view)

    def _own_values(self, of_walkers: Mapping[WalkerName, T]) -> dict[WalkerName, T]:
        return {name: of_walkers[full] for name, full in self.names.items() if full in of_walkers}
