"""What a recipe's `gate:` may hold: one bound, or one against the reference and one against the record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from moeparity.plan.spec.base import Model


class Gate(Model):
    """A bound that decides parity: of the candidate against the reference (`metric`), or of the side that sampled the
    tokens against what was recorded of them (`recorded`).
    """

    metric: Literal["k3"] | None = None
    recorded: Literal["k3"] | None = None
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    reduce: Literal["token", "sequence"] = "token"

    @model_validator(mode="after")
    def _bounds_one(self) -> Gate:
        if (self.metric is None) == (self.recorded is None):
            raise ValueError(
                "a gate bounds exactly one of `metric` (k3 of the candidate against the reference) and `recorded` (k3 "
                "against the record); " + ("this one has neither" if self.metric is None else "this one has both")
            )
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
