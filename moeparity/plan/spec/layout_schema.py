"""What a file may hold that says how ranks and tokens of traces lie, and weights: `kind: layout` (docs/diff.md,
docs/weights.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS
from moeparity.numerics.orders import parse
from moeparity.plan.spec.base import Model


class Cut(Model):
    """A value that is cut over the ranks along an axis: their parts behind each other, by rank, are the whole."""

    axis: int


class Summed(Model):
    """A value of which every rank has a part of a sum: they are added up here, in rank order as `sum` says.

    sum: an order of the algebra over the ranks (docs/orders.md), added in fp32 and rounded once where it says nothing
    else, or a collective's name (`moeparity ops all_reduce`).
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
    """Which form of `Placed` is meant."""
    if isinstance(placed, (Mapping, Cut, Summed)):
        return "summed" if isinstance(placed, Summed) or (isinstance(placed, Mapping) and "sum" in placed) else "cut"
    return "word"


Placed = Annotated[
    Annotated[Cut, Tag("cut")] | Annotated[Summed, Tag("summed")] | Annotated[Word, Tag("word")],
    Discriminator(_form),
]
"""`replicated`: every rank has the whole. `partial`: every rank has a part of a sum, compared once it is added. `own`:
every rank has something else, which is compared with nothing.
"""


class RankRule(Model):
    """How values of the calls whose path and name match lie over the ranks: what they give, are given, their weights.

    path: of the module. call: the name of the op, or the class of the module, such as `aten.mm*`.
    """

    path: str
    call: str = "*"
    outputs: Placed | None = None
    inputs: Placed | None = None
    weights: Placed | None = None


class ExpertRule(Model):
    """Modules of experts that every rank numbers from 0, though it has others: those in a module whose path matches.

    per_rank: how many each rank has, one after the other; or for each rank which, as the whole program numbers them.
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
    """Sequences of these lengths, packed behind each other, or each padded to one length."""

    lengths: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    padded_to: Annotated[int, Field(ge=1)] | None = None
    padding: Literal["left", "right"] = "right"

    @model_validator(mode="after")
    def _long_enough(self) -> TokenRule:
        if self.padded_to is not None and max(self.lengths) > self.padded_to:
            raise ValueError(f"a sequence of {max(self.lengths)} tokens does not fit into padded_to: {self.padded_to}")
        return self


class SideRules(Model):
    """One trace: the first rule whose path matches and that says it holds; tokens are those of every forward pass."""

    ranks: list[RankRule] = Field(default_factory=list)
    experts: ExpertRule | None = None
    tokens: TokenRule | None = None


Number = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^\$[a-z_]+$")]
"""A number, or a field of config.json: `$num_key_value_heads`."""


class HeldTensor(Model):
    """A tensor of the checkpoint in a parameter. `at_most`: it is cut into no more parts, each of them on several
    ranks, as heads of keys and values are.
    """

    tensor: str
    at_most: Number | None = None


class WeightCut(Model):
    """A parameter is cut along an axis over the ranks of a kind of parallelism, in equal parts by rank. `attention`:
    the ranks of one group of data-parallel attention, else those of `tensor`.
    """

    axis: Annotated[int, Field(ge=0)]
    over: Literal["tensor", "expert", "attention"]


class WeightRule(Model):
    """Which tensors of the checkpoint the parameters of a name hold, and how they lie there.

    name: `{i}` and `{e}` stand for whole numbers, other words in braces for any text; `holds` may name them.
    holds: the tensors, behind each other along the first axis.
    stacked: the first axis is that of the experts, `{e}`, each of which holds these tensors.
    local_experts: `{e}` in `name` counts the experts of a rank.
    transposed: its last two axes are exchanged; all else counts axes as the checkpoint does.
    groups: so many groups along the first axis, each with an equal part of every tensor.
    padded: rows at the end are no tensor's.
    cut: over which ranks. What is cut over several ranks of `expert` is not cut over `tensor`.
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
    """`kind: layout`: how the traces A and B lie, and the weights of a program; of weights the first rule counts whose
    name matches.
    """

    kind: Literal["layout"]
    a: SideRules = SideRules()
    b: SideRules = SideRules()
    weights: list[WeightRule] = Field(default_factory=list)
