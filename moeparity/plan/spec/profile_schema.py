"""What a profile may hold (`kind: profile`), as pydantic models: strict, frozen, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from moeparity.numerics.collectives.declaration import Level
from moeparity.plan.schedule.cases import WRITTEN, Case, Range, write
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.spec.base import Model, Name, Settings

LARGEST: Final = 10**9
"""Numbers of rows, keys, queries and bytes are below this."""


class Evidence(Model):
    """How sure a profile is of a rule, and where it comes from."""

    level: Level
    source: str


Number = Annotated[int, Field(ge=1, lt=LARGEST)]


class Bounds(Model):
    """Whole numbers `from` one (itself included; None: 0) and `below` another (itself not; None: without end)."""

    first: Annotated[Number | None, Field(alias="from")] = None
    below: Number | None = None

    @model_validator(mode="after")
    def _some(self) -> Bounds:
        if self.first is None and self.below is None:
            raise ValueError("it has neither `from` nor `below`; give one or both")
        if self.first is not None and self.below is not None and self.first >= self.below:
            raise ValueError(f"no number is `from` {self.first} and `below` {self.below}")
        return self

    @property
    def range(self) -> Range:
        """The numbers themselves."""
        return Range(self.first or 0, self.below)


class InCases(Model):
    """What holds in some steps of a schedule alone.

    `phase` names one phase or several (None: it holds in all). `rows`: how many rows go through the op together.
    `keys`: how many keys attention reads of a sequence; `longest`: of that sequence of the step which has most.
    `queries`: how many tokens of a sequence are in the step. `bytes`: of the message that a rank hands to an all-reduce
    of the step, in the dtype that the side runs in; `ranks`: over how many ranks it is added.
    """

    phase: Phase | Annotated[list[Phase], Field(min_length=1)] | None = None
    rows: Bounds | None = None
    longest: Bounds | None = None
    keys: Bounds | None = None
    queries: Bounds | None = None
    bytes: Bounds | None = None
    ranks: Bounds | None = None

    @property
    def cases(self) -> tuple[Case, ...] | None:
        """The cases it holds in; None: all."""
        bounds: dict[str, Bounds | None] = {name: getattr(self, name) for name in WRITTEN}
        ranges = {name: bound.range for name, bound in bounds.items() if bound is not None}
        if self.phase is None and not ranges:
            return None
        phases = PHASES if self.phase is None else self.phase if isinstance(self.phase, list) else (self.phase,)
        return tuple(write(phase, ranges) for phase in phases)


class Rule(InCases):
    """Values for the attributes of all nodes of an op, or of selected nodes, in all steps or in some (`phase`, `rows`,
    `longest`, `keys`, `queries`, `bytes`, `ranks`).

    `set_by` is what a user gives the engine to have them (None: nothing, it does so by itself); `changed_by` is what
    would give others, `none` where nothing does (None: leaving `set_by` out).
    """

    op: str | None = None
    nodes: str | None = None
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    set_by: str | None = None
    changed_by: str | None = None

    @model_validator(mode="after")
    def _one_selector(self) -> Rule:
        if (self.op is None) == (self.nodes is None):
            raise ValueError(
                "a rule selects by exactly one of `op` (all nodes of that op) and `nodes` (a selector); "
                + ("this one has neither" if self.op is None else "this one has both")
            )
        return self


class Fusion(InCases):
    """A fused kernel: a chain of ops along edges, and what fusing them sets on the nodes it matches.

    Keys of `set` are `op:attribute`, or `op:site->op` for a site on the edge between two ops of the chain. Flags are
    those of a `Rule`.
    """

    name: Name
    chain: Annotated[list[str], Field(min_length=2)]
    model_type: list[str] | None = None
    set: Settings
    evidence: Evidence | None = None
    set_by: str | None = None
    changed_by: str | None = None


class Engine(Model):
    """Whose numerics a profile states, of which version, and in which setup (`says`, one line).

    `none` is no engine: such a profile claims nothing of anyone. A profile that names none speaks of the engine of what
    it extends.
    """

    name: str
    version: str
    says: str


class ProfileFile(Model):
    """`kind: profile`: how one engine computes."""

    kind: Literal["profile"]
    name: str
    engine: Engine | None = None
    extends: str | None = None
    fusions: list[Fusion] = []
    rules: list[Rule] = []
