"""The schema of a layout file (`kind: layout`): how values, tokens and weights of a program are distributed over ranks
(docs/diff.md, docs/weights.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from moeparity.documents.model import Model
from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS
from moeparity.numerics.orders import parse


class Cut(Model):
    """A value that is cut over the ranks along an axis: the ranks' parts, concatenated in rank order, are the whole."""

    axis: int


class Summed(Model):
    """A value of which every rank has one addend: moeparity adds them up for the comparison, as `sum` says.

    sum: a summation order over the ranks (docs/orders.md), added in fp32 and rounded once unless it says otherwise, or
    the name of a collective (`moeparity show ops all_reduce`).
    """

    sum: str

    @field_validator("sum")
    @classmethod
    def _checked_sum(cls, sum: str) -> str:
        if sum not in COLLECTIVES and sum not in SELECTIONS:
            parse(sum)
        return sum


Word = Literal["replicated", "partial", "own"]


def _form(placed: Any) -> str:
    """The tag of the `Placed` variant that a value in the file is."""
    if isinstance(placed, (Mapping, Cut, Summed)):
        return "summed" if isinstance(placed, Summed) or (isinstance(placed, Mapping) and "sum" in placed) else "cut"
    return "word"


Placed = Annotated[
    Annotated[Cut, Tag("cut")] | Annotated[Summed, Tag("summed")] | Annotated[Word, Tag("word")],
    Discriminator(_form),
]
"""How a value lies over the ranks. `replicated`: every rank has the whole. `partial`: every rank has one addend of a
sum, and only the sum is compared, where the program makes it. `own`: every rank has a value of its own, which is not
compared.
"""


class RankRule(Model):
    """How the outputs, inputs and weights of matching calls lie over the ranks.

    path: pattern for the path of the module. call: pattern for the name of the op, such as `aten.mm*`, or for the class
    of the module.
    """

    path: str
    call: str = "*"
    outputs: Placed | None = None
    inputs: Placed | None = None
    weights: Placed | None = None


class ExpertRule(Model):
    """Modules of experts that every rank numbers from 0, though each rank has other experts.

    path: pattern for the module that holds them. per_rank: how many consecutive experts each rank has; or for each rank
    the numbers of its experts in the whole model.
    """

    path: str
    per_rank: Annotated[int, Field(ge=1)] | Annotated[list[list[Annotated[int, Field(ge=0)]]], Field(min_length=1)]

    @model_validator(mode="after")
    def _once(self) -> ExpertRule:
        every = [] if isinstance(self.per_rank, int) else [expert for experts in self.per_rank for expert in experts]
        twice = [expert for expert in every if every.count(expert) > 1]
        if twice:
            raise ValueError(f"expert {twice[0]} stands there twice: of copies of one expert none can be told apart")
        return self


class TokenRule(Model):
    """Sequences of these lengths, packed one behind the other, or each padded to `padded_to` tokens."""

    lengths: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    padded_to: Annotated[int, Field(ge=1)] | None = None
    padding: Literal["left", "right"] = "right"

    @model_validator(mode="after")
    def _long_enough(self) -> TokenRule:
        if self.padded_to is not None and max(self.lengths) > self.padded_to:
            raise ValueError(f"a sequence of {max(self.lengths)} tokens does not fit into padded_to: {self.padded_to}")
        return self


class SideRules(Model):
    """The rules of one trace: of `ranks` the first counts that matches and names the value; `tokens` describes those of
    every forward pass.
    """

    ranks: list[RankRule] = Field(default_factory=list)
    experts: ExpertRule | None = None
    tokens: TokenRule | None = None


Number = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^\$[a-z_]+$")]
"""A number, or `$` and a field of config.json that holds it: `$num_key_value_heads`."""


class HeldTensor(Model):
    """A tensor of the checkpoint that a parameter holds. `at_most`: the most parts it is cut into; with more ranks,
    several have the same part, as with heads of keys and values.
    """

    tensor: str
    at_most: Number | None = None


class WeightCut(Model):
    """A parameter is cut along an axis into equal parts, one for each rank of a kind of parallelism. `attention`: the
    ranks of one group of data-parallel attention; without such groups, those of `tensor`.
    """

    axis: Annotated[int, Field(ge=0)]
    over: Literal["tensor", "expert", "attention"]


class WeightRule(Model):
    """Which tensors of the checkpoint the parameters with a matching name hold, and how.

    name: `{i}` and `{e}` stand for whole numbers, other words in braces for any text; `holds` may use them.
    holds: the tensors, concatenated along the first axis.
    stacked: the parameter has a leading axis of experts, `{e}`, and holds these tensors for each.
    local_experts: `{e}` in `name` counts a rank's own experts from 0.
    transposed: the parameter's last two axes are exchanged; axes in other fields are still those of the checkpoint.
    groups: the first axis consists of this many groups, each with an equal part of every tensor.
    padded: the parameter may have more rows at its end, which belong to no tensor.
    cut: over which ranks. A parameter that is cut over several ranks of `expert` is not cut over `tensor`.
    """

    name: str
    holds: Annotated[list[str | HeldTensor], Field(min_length=1)]
    stacked: bool = False
    local_experts: bool = False
    transposed: bool = False
    groups: Number = 1
    padded: bool = False
    cut: list[WeightCut] = Field(default_factory=list)


class LayoutFile(Model):
    """`kind: layout`: how the values of the traces A and B, and the weights of a program, lie over ranks. Of the rules
    for weights the first one with a matching name counts.
    """

    kind: Literal["layout"]
    a: SideRules = SideRules()
    b: SideRules = SideRules()
    weights: list[WeightRule] = Field(default_factory=list)
