"""How a metric is declared: its formula, what it estimates, how it is reduced, and who defined it.

Plain data without torch. `Metric.reduce` names a quantity of `moeparity.metrics.quantities`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Strict

from moeparity.documents.model import Model

MetricKind = Literal[
    "token mean", "sequence mean", "mean over sequences", "token max", "token min", "sequence max", "sequence min",
    "token quantile", "of totals",
]  # fmt: skip
"""How a metric is reduced. `sequence mean`: the mean over sequences of each sequence's mean over its tokens. `mean over
sequences`: the mean of a value that each sequence has as a whole. `of totals`: a formula in sums over all tokens."""

By = Literal[
    "position",
    "probability",
    "group",
    "class",
    "step",
    "flipped",
    "version_lag",
    "pads",
    "retokenised",
    "phase",
    "rows",
    "drafted",
    "cache",
    "preempted",
    "weights",
]
"""Ways of grouping scored tokens."""

Level = Literal["read", "secondary", "inferred"]
"""read: it stands in the source itself. secondary: in a text that quotes the source. inferred: derived here."""

FORWARD_KL = "KL(sampler || trainer)"
"""What most metrics estimate."""


class Reduce(Model):
    """The reduction of a quantity. `offset` is added to the result; `at` is the rank of a quantile, in (0, 1]."""

    kind: MetricKind
    of: str
    offset: float = 0.0
    at: Annotated[float, Field(gt=0, le=1)] | None = None

    @property
    def has_interval(self) -> bool:
        """Whether it is a mean, of which an interval over sequences can be given."""
        return self.kind in {"token mean", "sequence mean", "mean over sequences"}


class Source(Model):
    """Where a definition stands: project, file ("" if only the project is known), commit, and how sure that is."""

    project: str
    file: str = ""
    commit: str = ""
    level: Level = "read"

    def __str__(self) -> str:
        """`verl-project/verl verl/x.py @ 1dda039b9 (read)`."""
        commit = f" @ {self.commit}" if self.commit else ""
        return f"{self.project}{self.file and ' '}{self.file}{commit} ({self.level})"


class Definition(Model):
    """What a file says of a metric, but for its name and source.

    formula: in words and ASCII, with delta = log P_trainer - log P_sampler and rho = exp(delta) on sampled tokens.
    estimates: what it estimates, and in which direction. unit: nats, or 1 for a plain number. clamp: what is cut off,
        and where. not_finite: what happens to infinities. needs: columns of `Chunk.values` without which there is no
        number.
    healthy, alarm: as published, in words. alarm_above, alarm_below: the alarm as a bound on the estimate.
    """

    reduce: Reduce
    formula: str
    estimates: str = ""
    unit: Literal["nats", "1"] = "nats"
    clamp: str = "none"
    not_finite: str = "kept: an infinite token makes it infinite"
    needs: Annotated[tuple[str, ...], Strict(False)] = ()
    healthy: str = ""
    alarm: str = ""
    alarm_above: float | None = None
    alarm_below: float | None = None


class Metric(Definition):
    """One metric. name: in reports, `expect:` and `--gate`; if it is a framework's own definition, the framework stands
    before a slash.
    """

    name: str
    source: Source

    @property
    def set(self) -> str:
        """The framework that defined it, or `common`."""
        return self.name.split("/")[0] if "/" in self.name else "common"

    def alarms(self, estimate: float) -> bool:
        """Whether this estimate raises a published alarm; NaN raises every alarm."""
        above, below = self.alarm_above, self.alarm_below
        return (above is not None and not estimate <= above) or (below is not None and not estimate >= below)
