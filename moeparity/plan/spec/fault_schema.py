"""What a fault file may hold, as pydantic models: strict, frozen, unknown keys refused.

A `Reference` is `$name`, one of the fault's free `values`, or a literal.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from moeparity.plan.spec.base import Model, Name

Reference = str | int | float
_NAME = "[a-z][a-z0-9]*(-[a-z0-9]+)*"


def _checked_name(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ValueError(
            f"{text!r} is no name of a fault; expected words of a-z and 0-9 joined by `-`, as in `norm-eps`"
        )
    return text


FaultName = Annotated[str, AfterValidator(_checked_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]


class Sits(Model):
    """At which nodes a fault can sit: of some ops, with some last names or `without` some, of some model types (None:
    all).
    """

    op: Annotated[list[str], Field(min_length=1)]
    node: list[str] | None = None
    without: list[str] = []
    model_type: list[str] | None = None


class FreeValue(Model):
    """A value that a fault leaves open.

    `number` is solved for, from `parameter` of the node (`rope.rope_theta` for a key of one) or from `start`; of
    `whole`, `width`, `number` and `part` those `tried` are tried, of `width` the width of what was recorded too.
    `expert` and `layer` are any there is, `order` the experts in another order, `checkpoint` a folder that must be
    given, `part` some of the node's weights by their ports, joined by `and`. Where none is given it has its `default`;
    that of a `part` is all.
    """

    type: Literal["number", "whole", "width", "expert", "layer", "order", "checkpoint", "part"]
    says: str
    parameter: str | None = None
    start: float | None = None
    tried: list[int | float | str] = []
    default: str | None = None


class ParameterEdit(Model):
    """A parameter that has another value: `is` that, or the other one of true and false (`flipped`)."""

    value: Annotated[Any, Field(alias="is")] = None
    flipped: bool = False


class WeightEdit(Model):
    """A weight that is not the checkpoint's own.

    First where it is taken from: `of` another port, `layer` or `checkpoint`, `order` of the experts, or `from_expert`;
    of one `expert` alone, or of all; and if it is among the weights `part` names. Then what becomes of it: `times`,
    `filled`, `transposed`. Or it is `absent`.
    """

    absent: bool = False
    of: Name | None = None
    layer: Reference | None = None
    checkpoint: Reference | None = None
    order: Reference | None = None
    expert: Reference | None = None
    from_expert: Reference | None = None
    part: Annotated[str, Field(pattern=r"^\$")] | None = None
    times: Reference | None = None
    filled: Reference | None = None
    transposed: bool = False


class InputEdit(Model):
    """What is read at a port, otherwise: what is read at another, a number added, moved along the sequence, or filled
    with one number.
    """

    of: Name | None = None
    plus: Reference | None = None
    shifted: Reference | None = None
    filled: Reference | None = None


class EffectEdit(Model):
    """The node's effect left out, so that what it reads at a port is handed on; or applied twice."""

    left_out: Name | None = None
    twice: Name | None = None


class ResultEdit(Model):
    """The node's result: divided by a number; of a router, tokens beyond the `capacity` of an expert dropped."""

    divided: Reference | None = None
    capacity: Reference | None = None


class Rewrite(Model):
    """What a fault does to a node: to its parameters, weights by port (`*`: all), inputs, effect or result."""

    params: dict[str, ParameterEdit] = {}
    weights: dict[str, WeightEdit] = {}
    inputs: dict[Name, InputEdit] = {}
    effect: EffectEdit | None = None
    result: ResultEdit | None = None

    @model_validator(mode="after")
    def _some(self) -> Rewrite:
        if not (self.params or self.weights or self.inputs or self.effect or self.result):
            raise ValueError("it rewrites nothing; give `params`, `weights`, `inputs`, `effect` or `result`")
        return self


class KnownFrom(Model):
    """Where a fault was met: an issue (`project#number`), or a source with its version."""

    where: str
    says: str


class FaultFile(Model):
    """`kind: fault`: a named rewrite of nodes.

    `says` is the sentence a report says, in which `{name}` stands for a free value; `looks_like` what it shows as.
    """

    kind: Literal["fault"]
    name: FaultName
    says: str
    sits: Sits
    values: dict[Name, FreeValue] = {}
    rewrite: Rewrite
    looks_like: str
    known_from: list[KnownFrom] = []
