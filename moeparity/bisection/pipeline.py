"""READ FIRST: from a recipe's path to a Report, the steps in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from moeparity.bisection.observe import observe
from moeparity.bisection.observed import Observed, codec
from moeparity.bisection.prepare import Options, Plan, prepare
from moeparity.bisection.report import Report
from moeparity.bisection.resume.fingerprint import fingerprint
from moeparity.bisection.resume.passes import Passes
from moeparity.bisection.sample import generate
from moeparity.bisection.sections import modules
from moeparity.bisection.summarise import summarise
from moeparity.bisection.toggles.measure import measured, total_kl
from moeparity.bisection.toggles.words import worth_splitting
from moeparity.inputs.model import Model, open_model
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback


def bisect(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
) -> Report:
    """Run a recipe: is it parity, where does it start, which choice is to blame.

    Everything is read, checked and bound before the first tensor is computed; where the recipe asks for it, one side
    continues the prompts; then both sides, every difference alone and every difference restored walk the graph
    together in one pass over the weights; where the recipe asks for it, the largest differences are taken apart in
    further passes, and a run that was killed goes on from those that were finished; where it asks for it, the
    divergence is shared out and the smallest fixes are looked for among mixtures of both sides; then what was seen is
    put into words. `options` go on top of the recipe, `progress` hears how far it is, `opener` opens the checkpoint.
    Raises MoeparityError for whatever is wrong with the recipe, its profiles, checkpoint or tokens, and where the run
    would not fit into memory.
    """
    plan, observed = passes(recipe, device=device, options=options, progress=progress, opener=opener)
    return summarise(plan, searched(plan, observed, progress))


def passes(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
) -> tuple[Plan, Observed]:
    """`bisect` up to its last step: the plan, and what all passes over it saw."""
    plan = prepare(Path(recipe), device=device, options=options, progress=progress, opener=opener)
    plan = generate(plan, progress=progress)
    blocks = [toggle for _, toggle in plan.swaps.values() if toggle is not None]
    with _pass_store(plan) as store:
        observed = _observed(store, 0, plan, [*plan.trial_toggles, *blocks], progress)
        for number in range(1, plan.recipe.split + 1):
            parts = _worth_taking_apart(plan, observed)
            if not parts:
                break
            plan = plan.with_toggles(parts)
            observed = observed.joined(_observed(store, number, plan, parts, progress))
    return plan, observed


def searched(plan: Plan, observed: Observed, progress: Callback | None = None) -> Observed:
    """With what the sections looked for in passes of their own: shares and fixes."""
    answers = {name: section.search(plan, observed, progress) for name, section in modules("search").items()}
    return replace(observed, answers={name: answer for name, answer in answers.items() if answer is not None})


def _pass_store(plan: Plan) -> AbstractContextManager[Passes | None]:
    """Where finished passes are kept until the run is finished.

    None where there is only one pass, and where users' functions run: what those import is not known, so nobody could
    say that a pass kept earlier is this run's.
    """
    if not plan.recipe.split or plan.functions:
        return nullcontext()
    return Passes(fingerprint(plan), codec(plan.model.graph))


def _observed(
    store: Passes | None, number: int, plan: Plan, toggles: Sequence[Toggle], progress: Callback | None
) -> Observed:
    """One pass, or what was kept of it."""
    stored_pass = None if store is None else store.load(str(number))
    if isinstance(stored_pass, Observed):
        return stored_pass
    observed = observe(plan, toggles, first=number == 0, progress=progress)
    if store is not None:
        store.save(str(number), observed)
    return observed


def _worth_taking_apart(plan: Plan, observed: Observed) -> list[Toggle]:
    """The parts of every toggle that is worth a further pass."""
    effects = [measured(toggle, plan, observed) for toggle in plan.toggles]
    return [part for toggle in worth_splitting(effects, total_kl(observed)) for part in split(toggle)]
