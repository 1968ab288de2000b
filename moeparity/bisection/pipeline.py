"""READ FIRST: from a recipe's path to a Report, the steps in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from moeparity.bisection.observe import observe
from moeparity.bisection.observed import Observed, codec
from moeparity.bisection.options import Options
from moeparity.bisection.plan import Plan
from moeparity.bisection.prepare import prepare
from moeparity.bisection.real_ranks.report import REAL
from moeparity.bisection.report import Report
from moeparity.bisection.resume.fingerprint import fingerprint
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.runs.folder import POINT, RunFolder, open_run
from moeparity.bisection.sample import generate
from moeparity.bisection.sections import modules
from moeparity.bisection.shards import SHARD
from moeparity.bisection.summarise import summarise
from moeparity.bisection.toggles.measure import worth_taking_apart
from moeparity.bisection.workers.crew import Crew
from moeparity.bisection.workers.job import job_of
from moeparity.bisection.workers.request import crew_of, wanted_workers
from moeparity.bisection.workers.sharded_pass import HERE, ShardedPass, Workforce
from moeparity.inputs.model import Model, open_model
from moeparity.output.json import plain
from moeparity.plan.toggles import Toggle, split
from moeparity.progress import Callback

_log = logging.getLogger("moeparity")


def bisect(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
    run: str | Path | None = None,
    workers: str | int | None = None,
) -> Report:
    """Run a recipe: is it parity, where does it start, which choice is to blame.

    Everything is read, checked and bound before the first tensor is computed; where the recipe asks for it, one side
    continues the prompts; then both sides, every difference alone and every difference restored walk the graph
    together in one pass over the weights; where the recipe asks for it, the largest differences are taken apart in
    further passes; where it asks for it, the divergence is shared out and the smallest fixes are looked for among
    mixtures of both sides; then what was seen is put into words. A run that was killed goes on from its finished
    passes. `options` go on top of the recipe, `progress` hears how far it is, `opener` opens the checkpoint. The folder
    `run` keeps the recipe, the plan, the environment and the report; where they lie there already, the report is read.
    `workers` compute its shards: a number of processes here, `ray`, `ray:auto` or `ray:HOST:PORT`; no result depends on
    them. Raises MoeparityError for whatever is wrong with the recipe, its profiles, checkpoint or tokens, where the run
    would not fit into memory, and for a folder that another run has, or holds.
    """
    options = replace(options or Options(), digests=True) if run is not None else options or Options()
    request, wanted = {"device": device, **asdict(options)}, wanted_workers(workers)
    with open_run(run, "bisect", recipe, plain(request)) as folder:
        plan = _ready(recipe, device, options, progress, opener)
        if folder is not None:
            folder.admit(plan, progress)
        with crew_of(wanted, device) as crew:
            report = bisected(plan, folder, progress, workforce_of(plan, options, crew))
        if folder is not None:
            folder.finish(report)
    return report


def take_part(recipe: str | Path, device: str, options: Options) -> None:
    """What the other ranks of a live job do of `bisect`: their part of each side, and nothing of the report.

    Raises MoeparityError.
    """
    _ready(recipe, device, options, None, open_model)


def _ready(
    recipe: str | Path, device: str, options: Options, progress: Callback | None, opener: Callable[..., Model]
) -> Plan:
    """A recipe made ready; where real ranks are asked for, with what they computed of it."""
    if options.ranks != REAL:
        return ready(recipe, device=device, options=options, progress=progress, opener=opener)
    # Not above: guards need parts of torch that take as long to import as all the rest together.
    from moeparity.bisection.real_ranks.run import job, on_real_ranks

    with job(device):
        plan = ready(recipe, device=device, options=options, progress=progress, opener=opener)
        return replace(plan, real_ranks=on_real_ranks(plan, progress))


def workforce_of(plan: Plan, options: Options, crew: Crew | None) -> Workforce:
    """Who computes shards of a plan; this process where users' functions run, which are looked at across all waves."""
    if crew is None:
        return HERE
    if plan.functions:
        _log.warning("--workers: users' functions are looked at in one process; everything is computed in this one")
        return HERE
    return Workforce(crew=crew, job=job_of(plan, options))


def bisected(
    plan: Plan,
    folder: RunFolder | None = None,
    progress: Callback | None = None,
    workforce: Workforce = HERE,
) -> Report:
    """The report of a plan; in a run's folder, read back where it is kept."""
    with piece_store(plan, folder, Report) as store:

        def make() -> Report:
            whole, observed = passes_over(plan, store, progress, workforce)
            return summarise(whole, searched(whole, observed, progress, store))

        return make() if folder is None or store is None else folder.once(store, POINT, make)


def ready(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
) -> Plan:
    """A recipe made ready, with the tokens that it asks to sample."""
    plan = prepare(Path(recipe), device=device, options=options, progress=progress, opener=opener)
    return generate(plan, progress=progress)


def passes(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
) -> tuple[Plan, Observed]:
    """`bisect` up to its last step: the plan, and what all passes over it saw."""
    plan = ready(recipe, device=device, options=options, progress=progress, opener=opener)
    with piece_store(plan) as store:
        return passes_over(plan, store, progress)


def first_toggles(plan: Plan) -> list[Toggle]:
    """What the first pass over a plan tries: its toggles, and blocks to be restored."""
    return [*plan.trial_toggles, *(toggle for _, toggle in plan.swaps.values() if toggle is not None)]


def passes_over(
    plan: Plan, store: PieceStore | None, progress: Callback | None = None, workforce: Workforce = HERE
) -> tuple[Plan, Observed]:
    """The plan with the parts of toggles that were taken apart, and what all passes over it saw."""
    parents: tuple[tuple[str, ...], ...] = ()
    first_pass = ShardedPass(plan=plan, toggles=first_toggles(plan), parents=parents)
    observed = _observed(store, first_pass, workforce, progress)
    for _ in range(plan.recipe.split):
        worth = worth_taking_apart(plan, observed)
        parts = [part for toggle in worth for part in split(toggle)]
        if not parts:
            break
        plan, parents = plan.with_toggles(parts), (*parents, tuple(toggle.name for toggle in worth))
        further = ShardedPass(plan=plan, toggles=parts, parents=parents)
        observed = observed.joined(_observed(store, further, workforce, progress))
    return plan, observed


def searched(
    plan: Plan, observed: Observed, progress: Callback | None = None, store: PieceStore | None = None
) -> Observed:
    """With what the sections looked for in passes of their own: shares and fixes."""
    answers = {name: section.search(plan, observed, progress, store) for name, section in modules("search").items()}
    return replace(observed, answers={name: answer for name, answer in answers.items() if answer is not None})


def piece_store(
    plan: Plan, folder: RunFolder | None = None, *results: type
) -> AbstractContextManager[PieceStore | None]:
    """Where finished passes, and results of these classes, are kept: in a run's folder, else in the user's cache until
    the run is finished.

    None in the cache where there is only one pass, and where users' functions run: what those import is not known, so
    nobody could say that a pass kept earlier is this run's.
    """
    if folder is not None:
        return folder.pieces(codec(plan.model.graph, *results))
    if plan.functions or not (plan.recipe.split or plan.recipe.attribute):
        return nullcontext()
    return PieceStore(fingerprint(plan), codec(plan.model.graph))


def _observed(
    store: PieceStore | None, wanted: ShardedPass, workforce: Workforce, progress: Callback | None
) -> Observed:
    """One pass, or what was kept of it; in shards where others compute, and where some are kept."""
    name = str(wanted.number)
    stored_pass = None if store is None else store.load(name)
    if isinstance(stored_pass, Observed):
        return stored_pass
    if workforce.crew is not None or (store is not None and store.has_any(SHARD.format(name))):
        observed = wanted.observed(store, workforce, progress)
    else:
        observed = observe(wanted.plan, wanted.toggles, first=not wanted.parents, progress=progress)
    if store is not None:
        store.save(name, observed)
    return observed
