"""Computes metrics from a stream of chunks in bounded memory.

Per sequence it keeps 8 bytes for each token quantity that some metric needs, 8 for the count and 8 for the content;
besides, a few numbers for each quantity of which extremes, spread or quantiles are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.metrics.chunk import Chunk
from moeparity.metrics.declaration import Metric
from moeparity.metrics.gated import interval, needed, per_sequence
from moeparity.metrics.quantities import FP32_EXP, SEQUENCE, TOKEN, Sums
from moeparity.metrics.repeated import Repetitions
from moeparity.metrics.running import LogSum, Magnitudes, Moments
from moeparity.metrics.verdict import Interval

OF_TOTALS: dict[str, tuple[str, ...]] = {
    "pearson": (),
    "abs_dp_std": (),
    "k3_std": (),
    "ess_fraction": (),
    "reinforce_ess": ("ratio_reinforce", "ratio_reinforce_squared"),
    "truncated_std": ("truncated", "truncated_squared"),
    "truncated_ess": ("truncated", "truncated_squared"),
    "kl_ent_ratio": ("k3", "entropy"),
}
"""By name of a formula over totals, the quantities whose sums it needs."""


@dataclass(slots=True)
class Accumulator:
    """Takes in chunks and gives the estimates of `metrics`.

    missing: metric -> why it has no number: a column that it needs is not in the log. infinite: scored tokens with
    infinite delta. overflowing: those with |delta| > `FP32_EXP`.
    """

    metrics: tuple[Metric, ...]
    missing: dict[str, str] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    infinite: int = 0
    overflowing: int = 0
    _counts: list[Tensor] = field(default_factory=list)
    _repetitions: Repetitions = field(default_factory=Repetitions)
    _columns: dict[str, list[Tensor]] = field(default_factory=dict)
    _extremes: dict[str, tuple[float, float]] = field(default_factory=dict)
    _quantiles: dict[str, Magnitudes] = field(default_factory=dict)
    _moments: dict[str, Moments] = field(default_factory=dict)
    _logsums: dict[str, LogSum] = field(default_factory=dict)
    _needs: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for metric in self.metrics:
            of, kind = metric.reduce.of, metric.reduce.kind
            if kind == "of totals":
                self._needs |= dict.fromkeys(OF_TOTALS[of], metric.needs)
                self._start_totals(of)
            elif kind in {"token mean", "sequence mean"}:
                self._needs[of] = metric.needs
            elif kind in {"token max", "token min"}:
                self._extremes[of] = (math.inf, -math.inf)
            elif kind == "token quantile":
                self._quantiles[of] = Magnitudes()
            else:
                self._needs |= dict.fromkeys(SEQUENCE[of][0], metric.needs)
        self._columns = {name: [] for name in self._needs}

    def _start_totals(self, of: str) -> None:
        if of in {"pearson", "abs_dp_std", "k3_std"}:
            self._moments[of] = Moments()
        elif of == "ess_fraction":
            self._logsums |= {"delta": LogSum(), "twice": LogSum()}

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences. A sequence without a scored token changes nothing."""
        if not chunk.tokens.numel():
            return
        self._drop_missing(chunk)
        delta, counts = chunk.delta, chunk.counts
        present = counts > 0
        self.ids += [chunk.ids[index] for index in present.nonzero().squeeze(-1).tolist()]
        self.infinite += int(delta.isinf().sum())
        self.overflowing += int((delta.abs() > FP32_EXP).sum())
        self._counts.append(counts[present])
        self._repetitions.add(chunk.content[present])
        values: dict[str, Tensor] = {}

        def value(name: str) -> Tensor:
            if name not in values:
                values[name] = TOKEN[name](chunk)
            return values[name]

        for name, column in self._columns.items():
            sums = torch.zeros(chunk.sequences, dtype=torch.float64).index_add_(0, chunk.sequence, value(name))
            column.append(sums[present])
        for name, (least, greatest) in self._extremes.items():
            quantity = value(name)
            self._extremes[name] = (min(least, float(quantity.min())), max(greatest, float(quantity.max())))
        for name, quantiles in self._quantiles.items():
            quantiles.add(value(name))
        for name, moments in self._moments.items():
            moments.add(_pairs(name, chunk))
        for name, logsum in self._logsums.items():
            logsum.add(delta if name == "delta" else 2 * delta)

    def _drop_missing(self, chunk: Chunk) -> None:
        """Move metrics to `missing`, with the reason, if this chunk lacks a column that they need, or has NaN in it."""
        for metric in self.metrics:
            for need in metric.needs:
                column = chunk.values.get(need)
                if metric.name not in self.missing and (column is None or bool(column.isnan().any())):
                    self.missing[metric.name] = f"the log has no {need} for every scored token"
        for name in [name for name, needs in self._needs.items() if needs and self._is_unneeded(name)]:
            del self._columns[name], self._needs[name]

    def _is_unneeded(self, name: str) -> bool:
        """Whether every metric that needs this column is missing."""
        return all(m.name in self.missing for m in self.metrics if name in _columns_of(m))

    @property
    def counts(self) -> Tensor:
        """Number of scored tokens of each sequence that has one, fp64 [B]."""
        return torch.cat(self._counts) if self._counts else torch.zeros(0, dtype=torch.float64)

    @property
    def tokens(self) -> int:
        """All scored tokens."""
        return int(self.counts.sum())

    def sums(self, name: str) -> Tensor:
        """The sums of a token quantity over each sequence that has a scored token, fp64 [B]."""
        parts = self._columns[name]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def per_sequence(self, metric: Metric) -> tuple[Tensor, Tensor]:
        """As `gated.per_sequence`, over all sequences with a scored token."""
        if not metric.reduce.has_interval:
            raise ValueError(f"{metric.name} is a {metric.reduce.kind}, no mean")
        return per_sequence(metric, {name: self.sums(name) for name in needed(metric)}, self.counts)

    def interval(self, metric: Metric) -> Interval:
        """As `gated.interval`, over all sequences with a scored token; repetitions of one count as one."""
        sums, counts = map(self._repetitions.merged, self.per_sequence(metric))
        return interval(metric, sums, counts, self.tokens)

    @property
    def repeated(self) -> int:
        """How many sequences repeat an earlier one."""
        return self._repetitions.count

    def of_sequences(self, name: str) -> Tensor:
        """A quantity that a sequence has as a whole, fp64 [B]."""
        columns, formula = SEQUENCE[name]
        return formula(Sums(self.counts, {column: self.sums(column) for column in columns}))

    def estimate(self, metric: Metric) -> float:
        """The metric's number; NaN without a token, or if the metric is `missing`."""
        if not self.tokens or metric.name in self.missing:
            return math.nan
        kind, of = metric.reduce.kind, metric.reduce.of
        if metric.reduce.has_interval:
            sums, counts = self.per_sequence(metric)
            value = float(sums.sum() / counts.sum())
        elif kind == "token quantile":
            value = self._quantiles[of].quantile(metric.reduce.at or 0.5)
        elif kind in {"token max", "token min"}:
            value = self._extremes[of][kind == "token max"]
        elif kind in {"sequence max", "sequence min"}:
            values = self.of_sequences(of)
            value = float(values.max() if kind == "sequence max" else values.min())
        else:
            value = self._of_totals(of)
        return value + metric.reduce.offset

    def _of_totals(self, name: str) -> float:
        if name == "pearson":
            return self._moments[name].correlation
        if name in self._moments:
            return self._moments[name].deviation
        if name == "ess_fraction":
            effective = math.exp(min(2 * self._logsums["delta"].value - self._logsums["twice"].value, 700.0))
            return effective / self.tokens
        sums = {column: float(self.sums(column).sum()) / self.tokens for column in OF_TOTALS[name]}
        if name == "kl_ent_ratio":
            return sums["k3"] / sums["entropy"] if sums["entropy"] else math.nan
        if name == "truncated_std":
            return math.sqrt(max(0.0, sums["truncated_squared"] - sums["truncated"] ** 2))
        if name == "reinforce_ess":
            squares = sums["ratio_reinforce_squared"]
            return sums["ratio_reinforce"] ** 2 / squares if squares else math.nan
        square = sums["truncated_squared"] / (sums["truncated"] + 1e-8) ** 2
        return 1 / square if square else math.nan


def _pairs(name: str, chunk: Chunk) -> Tensor:
    if name == "pearson":
        return torch.stack([chunk.trainer.exp(), chunk.rollout.exp()])
    column = TOKEN["abs_dp" if name == "abs_dp_std" else "k3"](chunk)
    return torch.stack([column, column])


def _columns_of(metric: Metric) -> Iterable[str]:
    """The token quantities of whose sums a metric is made."""
    kind, of = metric.reduce.kind, metric.reduce.of
    if kind == "of totals":
        return OF_TOTALS[of]
    if kind in {"token mean", "sequence mean"}:
        return (of,)
    return SEQUENCE[of][0] if of in SEQUENCE else ()
