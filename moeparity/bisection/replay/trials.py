"""Trials of the replay ladder: the candidate on every rung, and each toggle alone with the reference's ids forced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.engine.routes import IDS, REPLAYED, Forced, replayed_plan
from moeparity.errors import SpecError
from moeparity.plan.sides import CANDIDATE, REFERENCE


def trials(plan: Plan, trials: Trials) -> Trials:
    """Trials with forced routes; mixtures whose routes cannot be forced are left out.

    None without a router, or if the recipe asks for no ladder.
    """
    if not plan.recipe.replay or not any(node.op.routes for node in plan.model.graph.nodes):
        return {}
    whole = {toggle.name for toggle in plan.trial_toggles}
    sides = {TrialKey("candidate", forced=routes): plan.candidate for routes in REPLAYED}
    sides |= {
        replace(key, forced=IDS): trial.side for key, trial in trials.items() if key.kind == "alone" and key.of in whole
    }
    forced_trials: Trials = {}
    for key, side in sides.items():
        with suppress(SpecError):
            replayed_plan(side.plan, plan.reference.plan)
            assert key.forced != "natural"
            routes = Forced(of=REFERENCE, replayed=key.forced)
            forced_trials[key] = Trial(
                side=side, base=CANDIDATE if key.kind == "candidate" else REFERENCE, routes=routes
            )
    return forced_trials
