"""What a file may hold that says where a program's modules show the values of nodes: `kind: map` (docs/traces.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from moeparity.plan.spec.base import Model

Slot = int | str
"""The place of an argument or a result, or an argument's name; `2.1` is the second of a list."""


class Shown(Model):
    """Where a value is shown: at the `input` or the `output` of a module, at the first of several slots that is there.

    In `module` `{i}` stands for the layer, `{next}` for the one behind it. `columns` are the values that stand side by
    side in its last axis, in this order, this one among them: a fused projection. `repeated`: how many times side by
    side the node has what the program has once. `model_type`: the models that this holds of (None: all); `layers`:
    whether of all layers or of the last alone.
    """

    module: str
    input: Slot | Annotated[list[Slot], Field(min_length=1)] | None = None
    output: Slot | Annotated[list[Slot], Field(min_length=1)] | None = None
    columns: list[str] = []
    repeated: Annotated[int, Field(ge=1)] = 1
    model_type: list[str] | None = None
    layers: Literal["all", "last"] = "all"

    @model_validator(mode="after")
    def _one_side(self) -> Shown:
        if (self.input is None) == (self.output is None):
            raise ValueError("a value is shown at an `input` or at an `output` of a module; give one of them")
        return self

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots, as calls of a trace name them."""
        side = self.output if self.input is None else self.input
        return tuple(map(str, side if isinstance(side, list) else [side]))


class Module(Model):
    """A module by its path, its class or both."""

    module: str | None = None
    name: str | None = None


class MapFile(Model):
    """`kind: map`: where the modules of a program show the values of nodes.

    `shown_by`: modules of which one must be there, for a trace to be taken for this program's. `tokens`: the ids that
    go in. `mask`: the attention mask, which says what is padding, and `positions`, those of the tokens that go
    in: the first of several places that a trace has. `values`: by value of a node, with `layers[*]` for every layer,
    where it is shown: the first of several places that a trace has. What is not named stays unknown.
    """

    kind: Literal["map"]
    program: str
    shown_by: list[Module] = []
    tokens: Shown
    mask: list[Shown] = []
    positions: list[Shown] = []
    values: dict[str, Shown | Annotated[list[Shown], Field(min_length=1)]]
