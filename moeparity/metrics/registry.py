"""All declared metrics, by name and by set."""

from __future__ import annotations

from collections.abc import Iterable

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.metrics.declaration import Metric
from moeparity.metrics.declared_file import declared

_FILES = sorted(shipped("metrics").values(), key=lambda path: (path.stem != "common", path.stem))
METRICS: dict[str, Metric] = {metric.name: metric for path in _FILES for metric in declared(path)}
SETS: tuple[str, ...] = tuple(dict.fromkeys(metric.set for metric in METRICS.values()))


PRIMARY = (
    "k3",
    "k3_sequence",
    "k1",
    "k2",
    "k3_swapped",
    "mean_abs_delta",
    "p99_9_abs_delta",
    "max_abs_delta",
    "mean_ratio",
    "token_mult_prob_error",
    "mean_abs_dp",
    "pearson",
    "f2",
    "chi2_token",
    "ess_fraction",
)
"""The metrics with which a report opens, in order."""


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
