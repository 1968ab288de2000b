"""What a file may hold that says how the ranks and tokens of traces lie: `kind: layout` (docs/diff.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from moeparity.plan.spec.base import Model


class Cut(Model):
    """A value that is cut over the ranks along an axis: their parts behind each other, by rank, are the whole."""

    axis: int


Placed = Cut | Literal["replicated", "partial"]
"""`replicated`: every rank has the whole. `partial`: every rank has a part of a sum, compared once it is added."""


class RankRule(Model):
    """How values of the modules whose path matches lie over the ranks: what they give, are given, and their weights."""

    path: str
    outputs: Placed | None = None
    inputs: Placed | None = None
    weights: Placed | None = None


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
    tokens: TokenRule | None = None


class LayoutFile(Model):
    """`kind: layout`: how the traces A and B lie."""

    kind: Literal["layout"]
    a: SideRules = SideRules()
    b: SideRules = SideRules()
