"""One rule of a profile: values, the nodes it selects, where it was written and its evidence."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from moeparity.errors import Where
from moeparity.numerics.collectives.declaration import Level
from moeparity.ops.attribute import Value
from moeparity.plan.schedule.cases import OF_ATTENTION, Case, contains, parse
from moeparity.plan.schedule.steps import TOGETHER, Groups
from moeparity.plan.sizes import Condition, meet
from moeparity.plan.stages import Pipeline

EVIDENCE_LEVELS: Final = get_args(Level)
"""The surest first."""
UNKNOWN: Final = "unknown"
"""Level of a value for which nothing is given, or whose source speaks of another engine."""
BY_RECIPE: Final = "set by the recipe"
"""Level of a value that the recipe sets itself."""
NO_ENGINE: Final = "none"
DEFAULT: Final = "default"
"""The `set_by` of a value that the engine has by default, without a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Values for the nodes it selects, by op, by node name or by a fused chain of ops, and where it was written.

    `set_by` is the flag that a user of that engine gives it to get these values (None: none known), `profile` the
    profile that the rule is from.

    Exactly one of `op`, `nodes`, `fusion`, `placement` and `fault` (faults, by their text) is set. A fusion has its
    `chain` of ops, and keys that start with an op. A placement (such as `tensor`) applies to all ops that have its
    attribute, except those in `without`; under data-parallel attention (`groups`) only to the nodes that each group
    computes by itself (`apart`), or only to the others; with `pipeline` only to the nodes that close a stage.

    `cases` are the steps of a schedule to which it applies (None: all); `model_types` and `sizes` restrict the models.
    """

    op: str | None = None
    nodes: str | None = None
    fusion: str | None = None
    chain: tuple[str, ...] | None = None
    placement: str | None = None
    fault: str | None = None
    without: tuple[str, ...] = ()
    groups: Groups = TOGETHER
    apart: bool = False
    pipeline: Pipeline | None = None
    model_types: tuple[str, ...] | None = None
    sizes: Condition = ()
    cases: tuple[Case, ...] | None = None
    values: tuple[tuple[str, Value], ...]
    where: Where
    evidence: str
    set_by: str | None = None
    profile: str | None = None

    def holds_in(self, case: Case) -> bool:
        """Whether it applies to the steps of a case; cases are cut so that it applies to all of them or to none."""
        return self.cases is None or any(contains(own_case, case) for own_case in self.cases)

    def holds_of(self, model_type: str, sizes: Mapping[str, int]) -> bool:
        """Whether it applies to models of this type and these sizes."""
        return (self.model_types is None or model_type in self.model_types) and meet(sizes, self.sizes)

    def needs(self, ops: Container[str]) -> bool:
        """Whether all ops that it names are among `ops`."""
        return all(op in ops for op in self.chain or (() if self.op is None else (self.op,)))

    @property
    def by_sequence(self) -> bool:
        """Whether it depends on numbers of a single sequence (keys, queries, longest), which only attention knows."""
        return any(name in parse(case)[1] for case in self.cases or () for name in OF_ATTENTION)

    @property
    def cause(self) -> str:
        """What makes the engine run these values: a flag, or its default, and the profile that says so.

        Only the profile's name where the profile has no evidence for its engine; empty outside profiles.
        """
        if self.profile is None:
            return ""
        if self.set_by is None and self.level == UNKNOWN:
            return self.profile
        return f"{self.set_by or DEFAULT} ({self.profile})"

    @property
    def level(self) -> str:
        """How sure it is: a level of evidence, `unknown`, or for a recipe's own rule who set it."""
        return self._level_and_source[0]

    @property
    def source(self) -> str:
        """The source behind the level; empty where none is given."""
        return self._level_and_source[1]

    @property
    def _level_and_source(self) -> tuple[str, str]:
        """`evidence` split into level and source. The longest level that fits counts: `verified: ptx` also begins with
        `verified`.
        """
        for level in sorted((*EVIDENCE_LEVELS, UNKNOWN), key=len, reverse=True):
            if f"{self.evidence}: ".startswith(f"{level}: "):
                return level, self.evidence[len(level) + 2 :]
        return self.evidence, ""

    @classmethod
    def of_impl(cls, nodes: str, call: str, where: Where) -> Rule:
        """The rule behind a recipe's `impl:`; `nodes` are its selectors."""
        return cls(nodes=nodes, values=(("impl", call),), where=where, evidence="run by the recipe")

    @classmethod
    def of_fault(cls, text: str, where: Where) -> Rule:
        """The rule behind a recipe's `faults:`; `text` is what they are called, values included."""
        return cls(fault=text, values=(("fault", text),), where=where, evidence=BY_RECIPE)

    @property
    def label(self) -> str:
        """The rule's name in reports: `op combine`, `fusion ar_norm`, `placement tensor`, `fault norm-eps(eps=0.1)`, or
        its selector.
        """
        if self.placement is not None:
            return f"placement {self.placement}"
        if self.fault is not None:
            return f"fault {self.fault}"
        return f"op {self.op}" if self.op else f"fusion {self.fusion}" if self.fusion else str(self.nodes)

    @property
    def is_overlay(self) -> bool:
        """Whether everything it sets counts as one choice: true of a fusion, a placement and a fault."""
        return any(part is not None for part in (self.fusion, self.placement, self.fault))

    @property
    def narrowness(self) -> int:
        """How narrowly the rule selects nodes: 0 by op, 1 by fusion, 2 by selector."""
        return 2 if self.nodes else 1 if self.fusion else 0
