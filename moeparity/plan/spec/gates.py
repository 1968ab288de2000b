"""What a recipe's `gate:` may hold: one bound, or one against the reference and one against the record."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from moeparity.documents.model import Model
from moeparity.errors import did_you_mean, listed
from moeparity.metrics.gating import expected, gated_in_recipes, refusal, refusal_of_bound
from moeparity.metrics.registry import METRICS


def _of_recipes(name: str) -> str:
    names = gated_in_recipes()
    if name in names:
        return name
    metric = METRICS.get(name)
    if metric is None:
        ours = [metric for metric in names if METRICS[metric].set == "common"]
        raise ValueError(
            f"{name!r} is no metric; expected {listed(ours)}, or one of a framework, as in 'verl/k3_kl' "
            f"(docs/metrics.md).{did_you_mean(name, names)}"
        )
    why = refusal(metric) or f"{name} needs {' and '.join(metric.needs)} of every token, which only a log has"
    raise ValueError(f"{why}; {expected(names)}")


Gated = Annotated[str, AfterValidator(_of_recipes), Field(json_schema_extra={"enum": list(gated_in_recipes())})]
"""The name of a metric of docs/metrics.md that a recipe's gate may bound."""


class Gate(Model):
    """A bound that decides parity: of the candidate against the reference (`metric`), or of the side that sampled the
    tokens against what was recorded of them (`recorded`).

    `reduce` says how a mean over tokens is taken; metrics that are means over sequences leave it out.
    """

    metric: Gated | None = None
    recorded: Literal["k3"] | None = None
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    reduce: Literal["token", "sequence"] = "token"

    @model_validator(mode="after")
    def _bounds_one(self) -> Self:
        if (self.metric is None) == (self.recorded is None):
            raise ValueError(
                "a gate bounds exactly one of `metric` (k3 of the candidate against the reference) and `recorded` (k3 "
                "against the record); " + ("this one has neither" if self.metric is None else "this one has both")
            )
        return self

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        metric = METRICS[self.metric or self.recorded or "k3"]
        if why := refusal_of_bound(metric, self.below):
            raise ValueError(why)
        if metric.reduce.kind != "token mean" and "reduce" in self.model_fields_set:
            raise ValueError(f"{metric.name} is a {metric.reduce.kind} already; leave `reduce` out")
        return self


def _one_of_each(gates: Gate | list[Gate]) -> Gate | list[Gate]:
    names = ["recorded" if gate.metric is None else "metric" for gate in gates] if isinstance(gates, list) else []
    if isinstance(gates, list) and (not names or len(set(names)) < len(names)):
        raise ValueError(
            "expected one bound, or a list of one with `metric` and one with `recorded`; this list has "
            + (", ".join(f"`{name}`" for name in names) or "none")
        )
    return gates


Gates = Annotated[Gate | list[Gate], AfterValidator(_one_of_each)]
