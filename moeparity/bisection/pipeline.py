"""READ FIRST: the steps from a recipe's path to a Report, in order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from moeparity.bisection.measures import codec, searched, summarise
from moeparity.bisection.observe import observe
from moeparity.bisection.observed import Observed
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.real_ranks.data import REAL
from moeparity.bisection.report import Report
from moeparity.bisection.resume.fingerprint import fingerprint
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.runs.folder import POINT, RunFolder, open_run
from moeparity.bisection.sample import generate
from moeparity.bisection.study import Study
from moeparity.bisection.toggles.measure import worth_taking_apart
from moeparity.bisection.workers.crew import Crew
from moeparity.bisection.workers.message import job_of
from moeparity.bisection.workers.request import crew_of, wanted_workers
from moeparity.bisection.workers.sharded_pass import HERE, SHARD, ShardedPass, Workforce
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
    """Run a recipe: is it parity, where does the divergence start, which choice is to blame.

    1. Everything is read, checked and bound before the first tensor is computed.
    2. If the recipe samples, one side continues the prompts.
    3. One pass over the weights runs both sides, and each difference alone and restored.
    4. If the recipe asks for `split`, further passes take the largest differences apart.
    5. If it asks for `attribute`, the divergence is divided into shares and the smallest fixes are searched.
    6. What was seen is put into words.

    options: replace settings of the recipe. progress: is told how far the run is. opener: opens the checkpoint. run: a
    folder that keeps the recipe, the plan, the environment and the report; if it has them already, the report is read
    back. A killed run goes on from its finished passes. workers: a number of processes here, `ray`, `ray:auto` or
    `ray:HOST:PORT`, which compute shards; no result depends on them.

    Raises MoeparityError for whatever is wrong with the recipe, its profiles, checkpoint or tokens, if the run would
    not fit into memory, and for a folder that belongs to another run or is in use.
    """
    options = replace(options or Options(), digests=True) if run is not None else options or Options()
    request, wanted = {"device": device, **asdict(options)}, wanted_workers(workers)
    with open_run(run, "bisect", recipe, plain(request)) as folder:
        study = _ready(recipe, device, options, progress, opener)
        if folder is not None:
            folder.admit(study, progress)
        with crew_of(wanted, device) as crew:
            report = bisected(study, folder, progress, workforce_of(study, options, crew))
        if folder is not None:
            folder.finish(report)
    return report


def take_part(recipe: str | Path, device: str, options: Options) -> None:
    """What the other ranks of a live job do in `bisect`: they compute their part of each side, and make no report.

    Raises MoeparityError.
    """
    _ready(recipe, device, options, None, open_model)


def _ready(
    recipe: str | Path, device: str, options: Options, progress: Callback | None, opener: Callable[..., Model]
) -> Study:
    """The study of a recipe; if real ranks are asked for, with the values that they computed."""
    if options.ranks != REAL:
        return ready(recipe, device=device, options=options, progress=progress, opener=opener)
    # Imported here, since guards need parts of torch that take as long to import as everything else together.
    from moeparity.bisection.real_ranks.run import job, on_real_ranks

    with job(device):
        study = ready(recipe, device=device, options=options, progress=progress, opener=opener)
        return replace(study, real_ranks=on_real_ranks(study, progress))


def workforce_of(study: Study, options: Options, crew: Crew | None) -> Workforce:
    """Who computes shards of a study. If users' functions run, it is this process, since they are observed across
    waves.
    """
    if crew is None:
        return HERE
    if study.functions:
        _log.warning("--workers: users' functions are looked at in one process; everything is computed in this one")
        return HERE
    return Workforce(crew=crew, job=job_of(study, options))


def bisected(
    study: Study,
    folder: RunFolder | None = None,
    progress: Callback | None = None,
    workforce: Workforce = HERE,
) -> Report:
    """The report of a study; read back if the run's folder has it already."""
    with piece_store(study, folder, Report) as store:

        def make() -> Report:
            whole, observed = passes_over(study, store, progress, workforce)
            return summarise(whole, searched(whole, observed, progress, store))

        return make() if folder is None or store is None else folder.once(store, POINT, make)


def ready(
    recipe: str | Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
) -> Study:
    """The study of a recipe, with the tokens that the recipe asks to sample."""
    study = prepare(Path(recipe), device=device, options=options, progress=progress, opener=opener)
    return generate(study, progress=progress)


def first_toggles(study: Study) -> list[Toggle]:
    """What the first pass over a study tries: its toggles, and the blocks to be restored."""
    return [*study.trial_toggles, *(toggle for _, toggle in study.swaps.values() if toggle is not None)]


def passes_over(
    study: Study, store: PieceStore | None, progress: Callback | None = None, workforce: Workforce = HERE
) -> tuple[Study, Observed]:
    """The study, with parts of the toggles that were taken apart, and what all passes over it saw."""
    parents: tuple[tuple[str, ...], ...] = ()
    first_pass = ShardedPass(study=study, toggles=first_toggles(study), parents=parents)
    observed = _observed(store, first_pass, workforce, progress)
    for _ in range(study.recipe.split):
        worth = worth_taking_apart(study, observed)
        parts = [part for toggle in worth for part in split(toggle)]
        if not parts:
            break
        study, parents = study.with_toggles(parts), (*parents, tuple(toggle.name for toggle in worth))
        further = ShardedPass(study=study, toggles=parts, parents=parents)
        observed = observed.joined(_observed(store, further, workforce, progress))
    return study, observed


def piece_store(
    study: Study, folder: RunFolder | None = None, *results: type
) -> AbstractContextManager[PieceStore | None]:
    """The store of finished passes and of results of these classes: in the run's folder, else in the user's cache until
    the run is finished.

    Without a folder it is None if there is one pass only, and if users' functions run: what these import is unknown, so
    nobody could tell that an earlier pass belongs to the same run.
    """
    if folder is not None:
        return folder.pieces(codec(study.model.graph, *results))
    if study.functions or not (study.recipe.split or study.recipe.attribute):
        return nullcontext()
    return PieceStore(fingerprint(study), codec(study.model.graph))


def _observed(
    store: PieceStore | None, wanted: ShardedPass, workforce: Workforce, progress: Callback | None
) -> Observed:
    """One pass, loaded if it is kept. It is computed in shards if there are workers, or if some shards are kept."""
    name = str(wanted.number)
    stored_pass = None if store is None else store.load(name)
    if isinstance(stored_pass, Observed):
        return stored_pass
    if workforce.crew is not None or (store is not None and store.has_any(SHARD.format(name))):
        observed = wanted.observed(store, workforce, progress)
    else:
        observed = observe(wanted.study, wanted.toggles, first=not wanted.parents, progress=progress)
    if store is not None:
        store.save(name, observed)
    return observed
