"""Measures the split: log-probabilities of every pass as they go by, and sums and intervals of the parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.observers import reports
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.updates.data import Lagging, StaleKeys, UpdatePart, Updates
from moeparity.bisection.updates.passes import paths, rollout, semantics, trials
from moeparity.bisection.updates.show import updates_reading
from moeparity.bisection.updates.split import PARTS, Split
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics import quantities
from moeparity.metrics.interval import token_mean
from moeparity.metrics.tokens import log_probs, scored_parts
from moeparity.metrics.verdict import Interval
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.updates import Ages, ages


@dataclass(slots=True)
class LogProbs(SectionObserver):
    """log P of every scored token under each of some walkers.

    values: fp64 [W, B, T] on the CPU, in nats; NaN at tokens that are not scored, and of walkers that did not run.
    """

    output: str
    walkers: list[WalkerName]
    input_ids: Tensor
    loss_mask: Tensor
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = len(self.walkers), *self.input_ids.shape
        self.values = torch.full(shape, torch.nan, dtype=torch.float64)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        for place, walker in enumerate(self.walkers):
            if not view.ran(walker):
                continue
            values, reported = view.tensor(walker), reports(view, walker)
            for s, t in scored_parts(self.loss_mask[rows], values.shape[-1]):
                of_rows = log_probs(values[s, t - 1], reported)
                self.values[place, s.cpu() + rows.start, t.cpu()] = of_rows.gather(
                    -1, self.input_ids[rows][s, t].unsqueeze(-1)
                )[:, 0].cpu()

    @property
    def result(self) -> Tensor:
        """The values."""
        return self.values

    def part(self, rows: slice) -> Tensor:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.values[:, rows]

    def join(self, part: Tensor, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.values[:, rows] = part


def walkers(study: Study, schedule: Schedule) -> list[Any]:
    """The walkers of all paths, each once."""
    names = (getattr(path, name) for path in paths(study, schedule) for name in path.__slots__)
    return list(dict.fromkeys(names))


def observer(study: Study, trials: Trials) -> LogProbs | None:
    """The observer of all passes; None where the weights do not change."""
    schedule = rollout(study)
    if schedule is None:
        return None
    ids, _, scored = study.outcomes_on_device
    return LogProbs(study.model.graph.scores, walkers(study, schedule), ids, scored)


def bytes_per_token(study: Study) -> int:
    """How many bytes the observer keeps for each token."""
    schedule = rollout(study)
    return 0 if schedule is None else len(walkers(study, schedule)) * torch.float64.itemsize


LOG_PROBS: Final[Watch[Tensor]] = Watch("updates", observer, bytes_per_token=bytes_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The split of all scored tokens: `sequence` and `position`, int64 [N] each, `lag` and `oldest_key` of the rows
    that score them.
    """

    split: Split
    sequence: Tensor
    position: Tensor
    lag: Tensor
    oldest_key: Tensor
    sequences: int

    def mean(self, values: Tensor) -> Interval:
        """The mean of values [N] over the tokens that are finite in all passes; its interval resamples sequences."""
        finite = self.split.finite
        sums, counts = torch.zeros(2, self.sequences, dtype=torch.float64)
        sums.index_add_(0, self.sequence[finite], values[finite])
        counts.index_add_(0, self.sequence[finite], torch.ones_like(values[finite]))
        return token_mean(sums, counts)

    def k3(self, difference: Tensor) -> float:
        """The mean k3 of tokens whose log P is that of the trainer and `difference` [N] more."""
        return float(quantities.k3(0.0 - difference[self.split.finite]).mean())


def split_of(study: Study, values: Tensor | None) -> Seen | None:
    """The split of what was seen; None where the weights do not change, or nothing is scored."""
    schedule = rollout(study)
    if schedule is None or values is None:
        return None
    tokens = study.tokens
    sequence, position = (torch.cat(index) for index in zip(*scored_parts(tokens.loss_mask, 1), strict=True))
    of_rows: Ages = ages(schedule, *tokens.input_ids.shape)
    lag, oldest_key = (torch.tensor(rows)[sequence, position - 1] for rows in of_rows)
    split = Split.of(values[:, sequence, position], walkers(study, schedule), paths(study, schedule), lag)
    return Seen(
        split=split,
        sequence=sequence,
        position=position,
        lag=lag,
        oldest_key=oldest_key,
        sequences=len(tokens.input_ids),
    )


def measure(of: Context) -> Updates | None:
    """The section; None where the weights do not change."""
    of_tokens = split_of(of.study, of.observed.of_watch(LOG_PROBS))
    if of_tokens is None or not bool(of_tokens.split.finite.any()):
        return None
    split = of_tokens.split
    parts = tuple(_parts(of_tokens))
    stale_keys = _stale_keys(of_tokens)
    by_lag = tuple(_by_lag(of_tokens))
    left_out = int((~split.finite).sum())
    own_weights = of_tokens.mean(split.own_weights)
    own_weights_k3 = of_tokens.k3(split.own_weights)
    return Updates(
        whole=of_tokens.mean(split.whole),
        k3=of_tokens.k3(split.whole),
        own_weights=own_weights,
        own_weights_k3=own_weights_k3,
        parts=parts,
        by_lag=by_lag,
        stale_keys=stale_keys,
        semantics=tuple(toggle.name for toggle in semantics(of.study)),
        left_out=left_out,
        reading=tuple(updates_reading(parts, stale_keys, len(split.whole), own_weights_k3, left_out)),
    )


def _parts(of: Seen) -> list[UpdatePart]:
    difference, parts = of.split.whole, []
    for name, values, weights_first in zip(PARTS, of.split.parts, of.split.other_order, strict=True):
        difference = difference - values
        value, in_other = of.mean(values), of.mean(weights_first).estimate
        parts.append(
            UpdatePart(
                name=name,
                value=value,
                low=min(value.estimate, in_other),
                high=max(value.estimate, in_other),
                mean_abs=of.mean(values.abs()).estimate,
                k3_left=of.k3(difference),
            )
        )
    return parts


def _by_lag(of: Seen) -> list[Lagging]:
    rows = []
    for lag in sorted(set(of.lag.tolist()), reverse=True):
        whole = of.split.whole[of.split.finite & (of.lag == lag)]
        if whole.numel():
            k3 = float(quantities.k3(0.0 - whole).mean())
            rows.append(Lagging(lag=lag, tokens=whole.numel(), k1=float(whole.mean()), k3=k3))
    return rows


def _stale_keys(of: Seen) -> StaleKeys | None:
    """The tokens with stale keys; the first is that of the first sequence, not the first in time."""
    stale = (of.oldest_key > of.lag).nonzero().flatten()
    if not stale.numel():
        return None
    first = int(stale[0])
    return StaleKeys(
        tokens=stale.numel(),
        sequence=int(of.sequence[first]),
        token=int(of.position[first]),
        lag=int(of.lag[first]),
        oldest_key=int(of.oldest_key[first]),
    )


MEASURE = Measure(gives=Updates, measure=measure, trials=trials, watch=LOG_PROBS)
