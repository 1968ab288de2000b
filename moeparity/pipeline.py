"""READ FIRST: from a recipe's path to a Report, the steps in order."""

from __future__ import annotations

from pathlib import Path

from moeparity.attribution.effects import worth_splitting
from moeparity.attribution.toggles import split
from moeparity.observation import Observed, measured, observe, total_kl
from moeparity.plan import Options, Plan, prepare
from moeparity.progress import Callback
from moeparity.report.model import Report
from moeparity.sampling import generate
from moeparity.summary import summarise


def bisect(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
) -> Report:
    """Run a recipe: is it parity, where does it start, which choice is to blame.

    Everything is read, checked and bound before the first tensor is computed; where the recipe asks for it, one side
    continues the prompts; then both sides, every difference alone and every difference restored walk the graph
    together in one pass over the weights; where the recipe asks for it, the largest differences are taken apart in
    further passes; then what was seen is put into words. `options` go on top of the recipe, `progress` hears how far
    it is. Raises MoeparityError for whatever is wrong with the recipe, its profiles, checkpoint or tokens.
    """
    plan = generate(prepare(Path(recipe), device=device, options=options, progress=progress), progress=progress)
    blocks = [toggle for _, toggle in plan.swaps.values() if toggle is not None]
    observed = observe(plan, [*plan.toggles, *blocks], progress=progress)
    for _ in range(plan.recipe.split):
        deeper = _taken_apart(plan, observed, progress)
        if deeper is None:
            break
        plan, observed = deeper
    return summarise(plan, observed)


def _taken_apart(plan: Plan, observed: Observed, progress: Callback | None) -> tuple[Plan, Observed] | None:
    """One more pass: the parts of every toggle that is worth it; None where there are none."""
    effects = [measured(toggle, observed) for toggle in plan.toggles]
    parts = [part for toggle in worth_splitting(effects, total_kl(observed)) for part in split(toggle)]
    if not parts:
        return None
    return plan.with_toggles(parts), observed.joined(observe(plan, parts, first=False, progress=progress))
