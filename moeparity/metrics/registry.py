"""All declared metrics, by name and by set."""

from __future__ import annotations

from collections.abc import Iterable

from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.metrics import common
from moeparity.metrics.declaration import Metric
from moeparity.metrics.frameworks import (
    areal,
    miles,
    nemo_rl,
    openrlhf,
    pipelinerl,
    prime_rl,
    slime,
    tinker,
    trl,
    verl,
)

_FRAMEWORKS = (nemo_rl, verl, slime, miles, trl, openrlhf, areal, pipelinerl, tinker, prime_rl)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*common.METRICS, *(metric for framework in _FRAMEWORKS for metric in framework.METRICS))
}
SETS: tuple[str, ...] = tuple(dict.fromkeys(metric.set for metric in METRICS.values()))


def find(name: str, where: str) -> Metric:
    """The metric of that name; `where` begins the message. Raises MoeparityError, which names the nearest name."""
    if name not in METRICS:
        nearest = did_you_mean(name, METRICS) or did_you_mean(name.rpartition("/")[2], METRICS)
        raise MoeparityError(
            f"{where}: {name!r} is no metric; docs/metrics.md lists them: k1, k2, k3, mean_abs_delta and others, or "
            f"`set/name` with a framework's own name, as in 'verl/k3_kl'.{nearest}"
        )
    return METRICS[name]


def of_sets(names: Iterable[str]) -> tuple[Metric, ...]:
    """The metrics of `common` and of the named sets (`all`: every set). Raises MoeparityError for an unknown set."""
    sets = {"common", *names}
    for name in sets - {"all"}:
        if name not in SETS:
            raise MoeparityError(
                f"--set: {name!r} is no set of metrics; expected one of all, {listed(SETS)}.{did_you_mean(name, SETS)}"
            )
    return tuple(metric for metric in METRICS.values() if "all" in sets or metric.set in sets)
