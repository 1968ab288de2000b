"""What a profile may hold (`kind: profile`), as pydantic models: strict, frozen, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from moeparity.documents.model import Model
from moeparity.numerics.collectives.declaration import Level
from moeparity.plan.schedule.cases import WRITTEN, Case, Range, write
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.sizes import Condition, Numbers, Size
from moeparity.plan.spec.base import Gpu, Identifier, SettingsByName

GPUS_OWN: Final = "tensor_core"
"""The order of whichever GPU a side has."""
LARGEST: Final = 10**9
"""All numbers in conditions (rows, keys, queries, bytes, sizes) must be below this."""


class Evidence(Model):
    """How sure a profile is of a rule, and where it comes from."""

    level: Level
    source: str


Number = Annotated[int, Field(ge=1, lt=LARGEST)]
Listed = Annotated[list[Number], Field(min_length=1)]


class Bounds(Model):
    """Whole numbers `from` a first one (included; None: 0) to `below` another (excluded; None: no upper bound)."""

    first: Annotated[Number | None, Field(alias="from")] = None
    below: Number | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        bounds = {field.alias or name: getattr(self, name) for name, field in type(self).model_fields.items()}
        if all(bound is None for bound in bounds.values()):
            raise ValueError(f"it says nothing; give some of {', '.join(f'`{name}`' for name in bounds)}")
        if self.first is not None and self.below is not None and self.first >= self.below:
            raise ValueError(f"no number is `from` {self.first} and `below` {self.below}")
        return self

    @property
    def range(self) -> Range:
        """The bounds as a `Range`."""
        return Range(self.first or 0, self.below)


class InCases(Model):
    """Conditions that restrict something to some steps of a schedule.

    `phase` names one phase or several (None: all). `rows`: how many rows go through the op together. `keys`: how many
    keys attention reads of a sequence; `longest`: the largest such number of any sequence in the step. `queries`: how
    many tokens of a sequence are in the step. `bytes`: the size of the message that a rank hands to an all-reduce of
    the step, in the dtype that the side runs in; `ranks`: over how many ranks it is added up.
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
        """The cases it applies to; None: all."""
        bounds: dict[str, Bounds | None] = {name: getattr(self, name) for name in WRITTEN}
        ranges = {name: bound.range for name, bound in bounds.items() if bound is not None}
        if self.phase is None and not ranges:
            return None
        phases = PHASES if self.phase is None else self.phase if isinstance(self.phase, list) else (self.phase,)
        return tuple(write(phase, ranges) for phase in phases)


class Multiples(Bounds):
    """Bounds (or all whole numbers), restricted to the multiples of a number."""

    multiple_of: Annotated[int, Field(ge=2, lt=LARGEST)] | None = None


class Models(Model):
    """Conditions that restrict something to some models: to those of a `model_type`, or with certain `sizes`.

    `sizes`: by name (as in a graph's `sizes:`), the number that a size must have, several possible ones, or bounds
    (`from`, `below`, `multiple_of`).
    """

    model_type: list[str] | None = None
    sizes: Annotated[dict[Size, Number | Listed | Multiples], Field(min_length=1)] | None = None

    @property
    def condition(self) -> Condition:
        """The sizes that a model must have for it to apply."""
        return tuple((name, _numbers(stated)) for name, stated in (self.sizes or {}).items())


class OfModels(Models, InCases):
    """Conditions that restrict something to some models and to some steps of a schedule."""


def _numbers(stated: int | list[int] | Multiples) -> Numbers:
    if isinstance(stated, Multiples):
        return Numbers(range=stated.range, multiple_of=stated.multiple_of or 1)
    return Numbers(listed=tuple(stated) if isinstance(stated, list) else (stated,))


class Rule(OfModels):
    """Values for the attributes of all nodes of an op, or of selected nodes, in all steps or in some (`phase`, `rows`,
    `longest`, `keys`, `queries`, `bytes`, `ranks`).

    `set_by` is the flag that a user gives the engine to get these values (None: none, they are its default).
    """

    op: str | None = None
    nodes: str | None = None
    set: SettingsByName
    evidence: Evidence | None = None
    set_by: str | None = None

    @model_validator(mode="after")
    def _one_selector(self) -> Rule:
        if (self.op is None) == (self.nodes is None):
            raise ValueError(
                "a rule selects by exactly one of `op` (all nodes of that op) and `nodes` (a selector); "
                + ("this one has neither" if self.op is None else "this one has both")
            )
        return self


class Fusion(OfModels):
    """A fused kernel: a chain of ops, each of which reads the one before, and the values that fusing them sets.

    Keys of `set` are `op:attribute`, or `op:site->op` for a site on the edge between two ops of the chain; `set_by` is
    as in a `Rule`.
    """

    name: Identifier
    chain: Annotated[list[str], Field(min_length=2)]
    set: SettingsByName
    evidence: Evidence | None = None
    set_by: str | None = None


class GpuRule(Rule):
    """A rule that applies to sides whose `gpu` is one of `gpus`: what the engine's kernels do there.

    `tensor_core`, as the value of an order, is that of the side's GPU.
    """

    op: str
    gpus: Annotated[list[Gpu], Field(min_length=1)]

    def on(self, gpu: str) -> Self:
        """The rule as it is on one of them."""
        values = {name: f"{GPUS_OWN}({gpu})" if value == GPUS_OWN else value for name, value in self.set.items()}
        return self.model_copy(update={"set": values})


class FlagRule(Rule):
    """A rule that holds where a flag is given. `requested`: attributes whose number each request to the server says for
    itself, such as a temperature.
    """

    set: SettingsByName = {}
    requested: list[str] = []


Deciding = Literal["vllm.tuned_tiles"]
"""What an engine decides from a model's sizes and its ranks, by a table of its own (`moeparity/plan/vllm_tiles.py`)."""


class Flag(Models):
    """A flag, and its effect: the profile that this one `becomes` with it, and fusions and rules on top of it.

    `ops` restricts `becomes` to these ops. Several entries may have the same `flag`: the first whose conditions hold
    counts. They hold for models of a `model_type` or `sizes`, on so many `ranks` of tensor parallel, and `when` the
    engine decides so. An entry without an effect says that the flag's effect is not known there.
    """

    flag: str
    ranks: Number | Listed | Multiples | None = None
    when: Deciding | None = None
    becomes: str | None = None
    ops: list[str] = []
    fusions: list[Fusion] = []
    rules: list[FlagRule] = []

    @property
    def placement(self) -> Numbers | None:
        """The numbers of ranks that it applies to; None: any."""
        return None if self.ranks is None else _numbers(self.ranks)

    @property
    def is_known(self) -> bool:
        """Whether it has an effect that is known."""
        return self.becomes is not None or bool(self.fusions or self.rules)

    @property
    def is_conditional(self) -> bool:
        """Whether it applies to some models or placements only."""
        return any((self.model_type, self.sizes, self.ranks, self.when))

    @model_validator(mode="after")
    def _does_something(self) -> Flag:
        if not (self.is_known or self.is_conditional):
            raise ValueError("a flag `becomes` another profile, or has `rules` and `fusions` that it sets on top")
        if self.ops and self.becomes is None:
            raise ValueError("`ops` says for which ops a profile `becomes` another one; rules name theirs")
        return self


class Engine(Model):
    """The engine whose numerics a profile states, its version, and the setup (`says`, one line).

    The name `none` means no engine: such a profile makes no claim. A profile without `engine:` is about the engine of
    the profile it extends.
    """

    name: str
    version: str
    says: str


class Machine(Model):
    """The CPU that a profile's values hold for: the threads of a process, and what torch says that the CPU `has` and
    `lacks` (names of `torch.cpu.get_capabilities()`). `otherwise`: which profile holds for which other CPUs, in words.
    """

    threads: int | None = Field(default=None, ge=1)
    has: list[str] = []
    lacks: list[str] = []
    otherwise: str = ""


class ProfileFile(Model):
    """`kind: profile`: how one engine computes.

    `on_gpus` are rules for sides with a `gpu`. `flags` apply to this profile and to those that extend it;
    `unknown_flags` are flags of the extended profiles whose effect in combination with this profile is not known.
    """

    kind: Literal["profile"]
    name: str
    engine: Engine | None = None
    extends: str | None = None
    machine: Machine | None = None
    fusions: list[Fusion] = []
    rules: list[Rule] = []
    on_gpus: list[GpuRule] = []
    flags: list[Flag] = []
    unknown_flags: list[str] = []
