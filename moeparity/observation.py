"""One pass over a plan: both sides, every toggle's two trials and the local errors, seen by all observers."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from moeparity.attribution.toggles import CANDIDATE, REFERENCE, Side, Toggle, mixed
from moeparity.engine.lockstep import Counts, Walker, run
from moeparity.engine.schedule import micro_batches
from moeparity.errors import SpecError
from moeparity.observe.observers import Changes, Divergence, Logits, Routes
from moeparity.plan import Plan

SHADOW = "candidate's numerics on the reference's inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one pass over a plan saw."""

    divergence: Divergence
    changes: Changes
    routes: Routes
    logits: Logits
    counts: Counts
    naive_evaluations: int
    seconds: float


def observe(plan: Plan) -> Observed:
    """One pass over the weights: both sides, every toggle alone and restored alone, and the local errors."""
    started = time.perf_counter()
    trials = _trials(plan)
    walkers = [_walker(REFERENCE, plan.reference), _walker(CANDIDATE, plan.candidate)]
    walkers += [_walker(name, side) for name, (side, _) in trials.items()]
    names = [walker.name for walker in walkers]
    tokens = plan.tokens.input_ids.to(plan.model.device)
    divergence = Divergence(REFERENCE, CANDIDATE, SHADOW)
    changes = Changes([(name, base) for name, (_, base) in trials.items()])
    routes = Routes(REFERENCE, names[1:])
    logits = Logits(
        plan.model.graph.output,
        REFERENCE,
        names[1:],
        tokens,
        plan.tokens.loss_mask.to(plan.model.device),
        plan.recipe.tokens.sampler,
    )
    shadow = _walker(SHADOW, plan.candidate, inputs_of=REFERENCE)
    counts = run([*walkers, shadow], plan.model.weights, tokens, [divergence, changes, routes, logits])
    batches = sum(len(micro_batches(len(tokens), walker.micro_batch)) for walker in [*walkers, shadow])
    return Observed(
        divergence=divergence,
        changes=changes,
        routes=routes,
        logits=logits,
        counts=counts,
        naive_evaluations=batches * len(plan.model.graph.nodes),
        seconds=time.perf_counter() - started,
    )


def alone(toggle: Toggle) -> str:
    """The name of the trial in which the reference has this one choice of the candidate."""
    return f"{toggle.name} alone"


def restored(toggle: Toggle) -> str:
    """The name of the trial in which the candidate has this one choice of the reference."""
    return f"{toggle.name} restored"


def _trials(plan: Plan) -> dict[str, tuple[Side, str]]:
    """Every trial by name, with the side it is made from; mixtures that an op refuses to run are left out."""
    trials = {}
    for toggle in plan.toggles:
        with suppress(SpecError):
            trials[alone(toggle)] = (mixed(plan.reference, [toggle], plan.candidate), REFERENCE)
        with suppress(SpecError):
            trials[restored(toggle)] = (mixed(plan.candidate, [toggle], plan.reference), CANDIDATE)
    return trials


def _walker(name: str, side: Side, inputs_of: str | None = None) -> Walker:
    return Walker(name=name, plan=side.plan, micro_batch=side.micro_batch, inputs_of=inputs_of)
