"""The schema of a map (`kind: map`, docs/traces.md), which says at which modules of a program the values of nodes
appear.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from moeparity.documents.model import Model

Slot = int | str
"""An argument or result of a module, by index from 0 or by an argument's name; `2.1` is item 1 of a list at 2."""


class Shown(Model):
    """Where a value appears: as an `input` or `output` of a module; of several slots the first that exists counts.

    In `module`, `{i}` stands for the layer's index and `{next}` for the next one. `op`: the op that the module calls,
    by its full name, if the value is an input or output of that. `columns`: for a fused projection, the values that lie
    side by side in the last axis, in this order, this value among them. `repeated`: how
    many copies of the program's value, side by side, make the node's. `rows`: whether a server has it of every token or
    of each request's last one only. `model_type`: the models this holds for (None: all). `layers`: whether it holds for
    all layers or for the last only.
    """

    module: str
    input: Slot | Annotated[list[Slot], Field(min_length=1)] | None = None
    output: Slot | Annotated[list[Slot], Field(min_length=1)] | None = None
    op: str | None = None
    columns: list[str] = []
    repeated: Annotated[int, Field(ge=1)] = 1
    rows: Literal["tokens", "requests"] = "tokens"
    model_type: list[str] | None = None
    layers: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _one_side(self) -> Shown:
        if (self.input is None) == (self.output is None):
            raise ValueError("a value is shown at an `input` or at an `output` of a module; give one of them")
        return self

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots, named as in calls of a trace."""
        side = self.output if self.input is None else self.input
        return tuple(map(str, side if isinstance(side, list) else [side]))


class Module(Model):
    """A module by its path, its class or both."""

    module: str | None = None
    name: str | None = None


class MapFile(Model):
    """`kind: map`: at which modules of a program the values of nodes appear.

    `shown_by`: modules by which a trace is recognised as this program's; one of them must be there. `tokens`: where the
    input ids appear. `mask`: where the attention mask does, which says what is padding. `positions`: where the tokens'
    positions do. `values`: by name of a node's value, with `layers[*]` for every layer, where it appears. Of several
    places, the first that a trace has counts. Values that are not named stay unknown.
    """

    kind: Literal["map"]
    program: str
    shown_by: list[Module] = []
    tokens: Shown | Annotated[list[Shown], Field(min_length=1)]
    mask: list[Shown] = []
    positions: list[Shown] = []
    values: dict[str, Shown | Annotated[list[Shown], Field(min_length=1)]]
