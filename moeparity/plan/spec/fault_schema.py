"""What a fault file may hold, as pydantic models: strict, frozen, unknown keys refused.

A `Reference` is `$name`, one of the fault's free `values`, or a literal.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from moeparity.documents.model import Model
from moeparity.plan.spec.base import Identifier

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
    """The nodes at which a fault is possible: of these ops, whose last name is one of `node` (None: any) and none of
    `without`, in models of these types (None: all); `quantised`: only where config.json has a quantization_config;
    `two_levels`: only where that speaks of NVFP4, in which scales of blocks lie on one of the tensor.
    """

    op: Annotated[list[str], Field(min_length=1)]
    node: list[str] | None = None
    without: list[str] = []
    model_type: list[str] | None = None
    quantised: bool = False
    two_levels: bool = False


class FreeValue(Model):
    """A value that a fault leaves open.

    Types, and what a search tries: a `number` is solved for, starting at the node's `parameter` (`rope.rope_theta` for
    a key of one) or at `start`, and the numbers `tried` are tried too; for `whole`, `width` and `part` the values
    `tried`, for `width` also the width of a recorded value; for `expert` and `layer` every one there is; for `order`
    the experts in other orders. A `checkpoint` is a folder that must be given. A `part` names some of the node's
    weights by their ports, joined by `and`. A value that is not given is the `default`; for a `part` that means all.
    """

    type: Literal["number", "whole", "width", "expert", "layer", "order", "checkpoint", "part"]
    says: str
    parameter: str | None = None
    start: float | None = None
    tried: list[int | float | str] = []
    default: str | None = None


class ParameterEdit(Model):
    """A changed parameter: its new value (`is`), or `flipped` from true to false or back."""

    value: Annotated[Any, Field(alias="is")] = None
    flipped: bool = False


class WeightEdit(Model):
    """A weight that is not the checkpoint's own.

    First where it is taken from: the port `of`, another `layer`, `node` (by its last name) or `checkpoint`, the experts
    in another `order`, or all `from_expert`. Then what is done to it: `times` a number, `filled` with one,
    `transposed`, through `fp8` in blocks of so many rows and columns, with scales made of its own largest numbers or of
    those of another checkpoint (`amax_checkpoint`); of a quantised weight also to its `scales`, which
    may be those of another layer (`scales_layer`) or checkpoint (`scales_checkpoint`), be multiplied (`scales_times`),
    or be taken for those of blocks of another size (`scales_block`).
    With `expert` only that expert's part changes, and with `exchanged` it is another's, which has that expert's; with
    `part` only the weights named by that free value do. Or the weight is `absent`.
    """

    absent: bool = False
    of: Identifier | None = None
    layer: Reference | None = None
    node: Identifier | None = None
    checkpoint: Reference | None = None
    order: Reference | None = None
    expert: Reference | None = None
    from_expert: Reference | None = None
    exchanged: Reference | None = None
    part: Annotated[str, Field(pattern=r"^\$")] | None = None
    times: Reference | None = None
    filled: Reference | None = None
    transposed: bool = False
    fp8: Reference | None = None
    amax_checkpoint: Reference | None = None
    scales: (
        Literal[
            "transposed", "shifted", "twice", "inverted", "missing", "blocks_twice", "blocks_inverted",
            "tensor_inverted", "tensor_missing",
        ]
        | None
    ) = None  # fmt: skip
    scales_layer: Reference | None = None
    scales_checkpoint: Reference | None = None
    scales_times: Reference | None = None
    scales_block: Reference | None = None


class InputEdit(Model):
    """What a fault does to one input of its node. One of: take the input that another port gets (`of`), add a number
    to it (`plus`), move it along the sequence (`shifted`), put one number everywhere (`filled`); of the mask of a pack,
    which says what each token sees, let it see all (`opened`).
    """

    of: Identifier | None = None
    plus: Reference | None = None
    shifted: Reference | None = None
    filled: Reference | None = None
    opened: Reference | None = None


class EffectEdit(Model):
    """Each names an input port. `left_out`: the node does not run, and its result is that input. `twice`: it runs
    again, with its first result as that input.
    """

    left_out: Identifier | None = None
    twice: Identifier | None = None


class ResultEdit(Model):
    """How a fault changes what a node gives: it is `divided` by a number; or a router drops the tokens that exceed an
    expert's `capacity`, or all but so many `experts` of a token.
    """

    divided: Reference | None = None
    capacity: Reference | None = None
    experts: Reference | None = None


class Rewrite(Model):
    """What a fault does to a node: to its parameters, weights by port (`*`: all of the model's), inputs, effect or
    result; or to the state that its steps hand on, which is `unreset` where a sequence begins.
    """

    params: dict[str, ParameterEdit] = {}
    weights: dict[str, WeightEdit] = {}
    inputs: dict[Identifier, InputEdit] = {}
    effect: EffectEdit | None = None
    result: ResultEdit | None = None
    state: Literal["unreset"] | None = None

    @model_validator(mode="after")
    def _some(self) -> Rewrite:
        if not (self.params or self.weights or self.inputs or self.effect or self.result or self.state):
            raise ValueError("it rewrites nothing; give `params`, `weights`, `inputs`, `effect`, `result` or `state`")
        return self


class KnownFrom(Model):
    """Where a fault was met: an issue (`project#number`), or a source with its version."""

    where: str
    says: str


class FaultFile(Model):
    """`kind: fault`: a named rewrite of nodes.

    `says` is the sentence in reports, in which `{name}` stands for a free value; `looks_like` are the symptoms.
    """

    kind: Literal["fault"]
    name: FaultName
    says: str
    sits: Sits
    values: dict[Identifier, FreeValue] = {}
    rewrite: Rewrite
    looks_like: str
    known_from: list[KnownFrom] = []
