"""The passes between a rollout across updates and its trainer: what each differs in from the one before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.engine.walker import WalkerName
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.updates import all_on, recomputed
from moeparity.plan.sides import CANDIDATE, REFERENCE
from moeparity.plan.toggles import SEMANTICS, Toggle, mixed, toggles

RECOMPUTED = "cache recomputed"
NEWEST = "newest weights"
TRAINED = "the trainer's semantics"
KEPT = "newest weights on the kept cache"
OWN = "the trainer on older weights"


@dataclass(frozen=True, slots=True)
class Path:
    """The walkers that compute the tokens of one version of the weights.

    rollout: own weights, the cache as it was kept. recomputed: own weights, the cache computed by these. newest: the
    newest weights, the cache computed by these. semantics: the same with the trainer's semantics. newest_on_old_cache:
    the newest weights for these rows, the cache as it was kept. trainer: on the newest weights; own_trainer: on the
    tokens' own.
    """

    rollout: WalkerName
    recomputed: WalkerName
    newest: WalkerName
    semantics: WalkerName
    newest_on_old_cache: WalkerName
    trainer: WalkerName
    own_trainer: WalkerName


def rollout(study: Study) -> Schedule | None:
    """The candidate's steps if they run on several versions of the weights; else None."""
    if study.recorded is not None:
        return None
    schedule = study.walked(study.candidate).on(study.grid.sequences, study.grid.length)
    return schedule if schedule.lags != {0} else None


def semantics(study: Study) -> list[Toggle]:
    """The choices of a study's sides, but for the schedule's, that change which function is computed."""
    return [
        toggle for toggle in toggles(study.reference, study.candidate) if toggle.kind == SEMANTICS and toggle.members
    ]


def trials(study: Study, trials: Trials) -> Trials:
    """What runs beside both sides; nothing where the weights do not change."""
    schedule = rollout(study)
    return {} if schedule is None else dict(_trials(study, schedule))


def _trials(study: Study, schedule: Schedule) -> Iterator[tuple[TrialKey, Trial]]:
    """Each is the candidate's plan, on steps of its own; only steps say which weights run."""
    oldest, side, choices = max(schedule.lags), study.candidate, semantics(study)
    trained = mixed(side, choices, study.reference) if choices else None
    trainer = study.walked(study.reference).on(study.grid.sequences, study.grid.length)
    for lag in range(oldest + 1):
        steps = recomputed(schedule, lag, study.grid.sequences, study.grid.length)
        givers = {0: TrialKey("update", RECOMPUTED, lag) if lag < oldest else CANDIDATE}
        if lag < oldest:
            yield TrialKey("update", RECOMPUTED, lag), Trial(side=side, base=CANDIDATE, schedule=steps)
        if lag:
            yield TrialKey("update", NEWEST, lag), Trial(side=side, base=CANDIDATE, schedule=all_on(steps, 0))
            yield (
                TrialKey("update", OWN, lag),
                Trial(side=study.reference, base=REFERENCE, schedule=all_on(trainer, lag)),
            )
            if schedule.recomputes:
                yield (
                    TrialKey("update", KEPT, lag),
                    Trial(side=side, base=CANDIDATE, schedule=all_on(steps, 0), keys_of=givers),
                )
        if trained is not None:
            yield TrialKey("update", TRAINED, lag), Trial(side=trained, base=CANDIDATE, schedule=all_on(steps, 0))
    if not schedule.recomputes:
        steps, keys_of = all_on(schedule, 0), {0: CANDIDATE}
        yield TrialKey("update", KEPT), Trial(side=side, base=CANDIDATE, schedule=steps, keys_of=keys_of)


def paths(study: Study, schedule: Schedule) -> list[Path]:
    """By lag, from 0 on, the walkers of the tokens whose weights are that many updates back."""
    oldest, has_semantics = max(schedule.lags), bool(semantics(study))
    by_lag = []
    for lag in range(oldest + 1):
        on_own: WalkerName = CANDIDATE if lag == oldest else TrialKey("update", RECOMPUTED, lag)
        newest: WalkerName = TrialKey("update", NEWEST, lag) if lag else on_own
        by_lag.append(
            Path(
                rollout=CANDIDATE,
                recomputed=on_own,
                newest=newest,
                semantics=TrialKey("update", TRAINED, lag) if has_semantics else newest,
                newest_on_old_cache=TrialKey("update", KEPT, lag if schedule.recomputes else 0) if lag else CANDIDATE,
                trainer=REFERENCE,
                own_trainer=TrialKey("update", OWN, lag) if lag else REFERENCE,
            )
        )
    return by_lag
