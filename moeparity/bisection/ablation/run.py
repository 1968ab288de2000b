"""Puts every setting of two launch configurations alone, all but one, and one after the other."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from moeparity.bisection.ablation import configurations as launches
from moeparity.bisection.ablation.report import Ablation, Effect, RestoredSetting, Setting, Tier
from moeparity.bisection.ablation.rows import Row, choice_of, rows_of, tier_of
from moeparity.bisection.init import write_starter
from moeparity.bisection.init.requests import requested
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.options import LaunchedPair, Options
from moeparity.bisection.pipeline import ready
from moeparity.bisection.study import Study
from moeparity.errors import SpecError, Where, display_path
from moeparity.inputs.model import open_model
from moeparity.metrics.interval import token_mean
from moeparity.paths import present
from moeparity.plan.difference import Difference
from moeparity.plan.spec import reader
from moeparity.plan.toggles import toggles
from moeparity.profiles.launch.show import warning_line
from moeparity.progress import Callback
from moeparity.search.memo import Memo, Mixture, Outcome

_TIERS: tuple[Tier, ...] = ("semantics", "inference path", "objective")
_OF_REQUESTS = ("generation_config", "override_generation_config")
"""Options that are followed: what they ask a sampler for is put into the sides."""
_BEAM = 6
"""Settings tried at each step of the order: those that left the least at the step before come first."""


def ablate(
    subject: str | Path,
    first: str | Path,
    second: str | Path,
    *,
    role: str | None = None,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> Ablation:
    """What each setting does in which two launch configurations differ, the first of which is the reference.

    subject: a recipe, whose checkpoint, tokens and gate are taken, or a checkpoint's folder, for which prompts are made
    as by `moeparity init`. role: `server` or `trainer`, where the files start both. Raises MoeparityError.
    """
    with ExitStack() as stack:
        recipe = _recipe(Path(subject), stack, progress)
        recipe_file = reader.read_recipe(recipe)
        checkpoint = reader.find_file(recipe_file.checkpoint, Where(recipe), "checkpoint")
        started = launches.pair(Path(first), Path(second), checkpoint, role)
        opened = open_model(
            checkpoint,
            device=device,
            synthetic=recipe_file.synthetic,
            progress=progress,
            values=False,
            adapter=reader.find_adapter(recipe_file, recipe),
        )
        differing = launches.options_of(*started, opened.graph, opened.dtype)
        bindable = [each.bindable(peer, opened.graph) for each, peer in (started, started[::-1])]
        options = Options(
            sides=LaunchedPair(
                variants=(bindable[0].variant, bindable[1].variant),
                profiles=(bindable[0].profile, bindable[1].profile),
                temperature=_temperature(started),
            ),
            floor=False,
            oracle=False,
            attribute=False,
            replay=False,
            allow_code=allow_code,
            memory_limit=memory_limit,
        )
        study = ready(recipe, device=device, options=options, progress=progress, opener=lambda *_, **__: opened)
        return _Ablating(study, started, differing, progress).report()


def _recipe(subject: Path, stack: ExitStack, progress: Callback | None) -> Path:
    """The recipe; for a checkpoint's folder one with its prompts, in a folder that goes when the run ends."""
    if not (subject.is_dir() and present(subject)):
        return subject
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return write_starter(subject, folder / "recipe.yaml", progress=progress).recipe


def _temperature(started: tuple[launches.Started, launches.Started]) -> float | None:
    """The sampler's, by the second configuration, else by the first."""
    for each in reversed(started):
        request = requested(each.launch.settings).get("temperature")
        if request is not None:
            return request.value
    return None


class _Ablating:
    """One pair of configurations while its mixtures are run."""

    def __init__(
        self,
        study: Study,
        started: tuple[launches.Started, launches.Started],
        options: launches.Options,
        progress: Callback | None,
    ) -> None:
        def name(difference: Difference) -> str:
            return next(filter(None, (options.owner.get(place, "") for place in difference.places)), "")

        bundled = tuple(toggles(study.reference, study.candidate, name))
        self.study, self.started, self.options = replace(study, toggles=bundled), started, options
        self.rows = list(rows_of(bundled, options))
        self.mixtures = Mixtures(self.study, progress=progress)
        self.memo = Memo(tuple(toggle.name for toggle in bundled), self.mixtures)

    def report(self) -> Ablation:
        """Everything measured."""
        every = self.memo.everything
        starts = {tier: self._start(tier) for tier in _TIERS}
        back = (starts[tier_of(row)] - row.mixture for row in self.rows)
        self.memo.ask([every, *starts.values(), *(row.mixture for row in self.rows), *back])
        whole = self.memo[every]
        if whole is None:
            raise SpecError(
                f"{Where(self.started[1].path)}: an op refuses the second configuration's choices together."
            )
        measured = [self._measured(row) for row in self.rows]
        acting = {setting.name for setting in measured if setting.effect not in ("no effect", "refused")}
        order = list(self._order(whole, [row for row in self.rows if row.name in acting]))
        first, second = self.started
        return Ablation(
            first=display_path(first.path),
            second=display_path(second.path),
            first_release=first.configuration.release,
            second_release=second.configuration.release,
            role=second.role,
            checkpoint=display_path(Path(second.configuration.checkpoint or "")),
            sequences=len(self.study.tokens.input_ids),
            tokens=int(self.study.tokens.loss_mask.sum()),
            tiers={tier: _kl(self.memo[start]) for tier, start in starts.items()},
            kl=whole.value,
            k3=whole.k3,
            exact=whole.exact,
            settings=(*measured, *self._without_effect()),
            order=tuple(order),
            left=order[-1].left if order else whole.value,
            mixtures=self.mixtures.walked,
            warnings=tuple(dict.fromkeys(self._warnings())),
        )

    def _start(self, tier: Tier) -> Mixture:
        """The second configuration with all tiers above this one as in the first."""
        above = _TIERS[: _TIERS.index(tier)]
        return self.memo.everything - frozenset().union(*(row.mixture for row in self.rows if tier_of(row) in above))

    def _measured(self, row: Row) -> Setting:
        start = self._start(tier_of(row))
        alone, back, whole = self.memo.ask([row.mixture, start - row.mixture, start])
        low, high = (0.0, 0.0) if back is None or whole is None else _change(back, whole)
        return Setting(
            name=row.name,
            tier=tier_of(row),
            option=row.option,
            choices=tuple(choice_of(toggle) for toggle in row.toggles),
            alone=None if alone is None else alone.value,
            back=None if back is None else back.value,
            change_low=low,
            change_high=high,
            effect=_effect(alone, back, whole, (low, high)),
            **self._values(row),
        )

    def _values(self, row: Row) -> dict[str, str]:
        """Both values, where each comes from, and what gives the second configuration the first one's."""
        if not row.option:
            toggle = row.toggles[0]
            return {
                "first": toggle.reference,
                "second": toggle.candidate,
                "first_where": toggle.reference_origin,
                "second_where": toggle.candidate_origin,
                "cure": toggle.candidate_changed_by,
            }
        names = row.name.split(" with ")
        values = [[each.configuration.value(name) for name in names] for each in self.started]
        texts = [", ".join(value.text for value in side) for side in values]
        places = ["; ".join(dict.fromkeys(value.where for value in side)) for side in values]
        cure = ", ".join(f"{name} {value.text}" for name, value in zip(names, values[0], strict=True))
        return dict(
            zip(("first", "second", "first_where", "second_where", "cure"), (*texts, *places, cure), strict=True)
        )

    def _without_effect(self) -> Iterator[Setting]:
        """Options that differ and move nothing here, and those of the objective."""
        moving = {name for row in self.rows if row.option for name in row.name.split(" with ")}
        for name in self.options.names:
            if name not in moving:
                values = [each.configuration.value(name) for each in self.started]
                says, simulated = self._says(name)
                yield _unmoved(name, "inference path", values[0], values[1], says, simulated=simulated)
        for name, (reference, candidate) in launches.objectives(*self.started).items():
            says = (
                "of which log-probabilities the ratio is made, and how it is weighed: set it after the two tiers above"
            )
            yield _unmoved(name, "objective", (reference, "", ""), (candidate, "", ""), says, simulated=False)

    def _says(self, name: str) -> tuple[str, bool]:
        """Why an option moves nothing, and whether that is known, and not only that no profile states it."""
        if name in self.options.obstacles:
            return self.options.obstacles[name], False
        implied = []
        for each in self.started:
            option = next(option for option in each.configuration.program.options if option.name == name)
            implied.append(option.implies(each.configuration.resolved[name]))
        warned = next((each.warns for each in implied if each.warns), "")
        return (warned, False) if warned else (implied[1].says, True)

    def _order(self, whole: Outcome, acting: Sequence[Row]) -> Iterator[RestoredSetting]:
        """The settings that act and can be set, the one that leaves the least first, until nothing is left."""
        waiting = [row for row in acting if self._values(row)["cure"]]
        mixture, before = self.memo.everything, whole
        while waiting and not before.exact:
            tried = waiting[:_BEAM]
            outcomes = self.memo.ask([mixture - row.mixture for row in tried])
            row, outcome = min(zip(tried, outcomes, strict=True), key=lambda pair: _kl(pair[1]))
            if outcome is None:
                return
            remainders = {row.name: _kl(outcome) for row, outcome in zip(tried, outcomes, strict=True)}
            waiting.remove(row)
            waiting.sort(key=lambda row: remainders.get(row.name, math.inf))
            mixture -= row.mixture
            low, high = _change(outcome, before)
            yield RestoredSetting(
                name=row.name, cure=self._values(row)["cure"], left=outcome.value, change_low=low, change_high=high
            )
            before = outcome

    def _warnings(self) -> Iterator[str]:
        for each in self.started:
            for warning in each.launch.warnings:
                if warning.role == each.role and warning.name not in (*self.options.names, *_OF_REQUESTS):
                    yield f"{each.configuration.release}: {warning_line(warning)}"


def _unmoved(
    name: str,
    tier: Tier,
    first: tuple[str, object, str],
    second: tuple[str, object, str],
    says: str,
    *,
    simulated: bool,
) -> Setting:
    return Setting(
        name=name,
        tier=tier,
        option=True,
        first=first[0],
        second=second[0],
        first_where=first[2],
        second_where=second[2],
        cure="",
        choices=(),
        alone=None,
        back=None,
        change_low=0.0,
        change_high=0.0,
        effect="no effect" if simulated else "not put",
        says=says,
    )


def _change(outcome: Outcome, before: Outcome) -> tuple[float, float]:
    """The 95 % interval of a change of the KL, nats per scored token, paired over sequences."""
    difference = torch.tensor(outcome.sums, dtype=torch.float64) - torch.tensor(before.sums, dtype=torch.float64)
    interval = token_mean(difference, torch.tensor(before.tokens, dtype=torch.float64))
    return interval.low, interval.high


def _effect(alone: Outcome | None, back: Outcome | None, whole: Outcome | None, change: tuple[float, float]) -> Effect:
    if alone is None or back is None or whole is None:
        return "refused"
    if alone.exact and back.sums == whole.sums:
        return "no effect"
    low, high = change
    return "lowers" if high < 0 else "raises" if low > 0 else "not shown"


def _kl(outcome: Outcome | None) -> float:
    return math.inf if outcome is None else outcome.value
