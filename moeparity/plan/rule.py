"""One rule of a profile: values, the nodes it selects, where it was written and what it rests on."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Final, get_args

from moeparity.errors import Where
from moeparity.numerics.collectives.declaration import Level
from moeparity.ops.attribute import Value
from moeparity.plan.schedule.cases import OF_ATTENTION, Case, contains, parse
from moeparity.plan.schedule.steps import TOGETHER, Groups
from moeparity.plan.stages import Pipeline

EVIDENCE_LEVELS: Final = get_args(Level)
"""The surest first."""
UNKNOWN: Final = "unknown"
"""Level of a value for which nothing is given, or whose source speaks of another engine."""
BY_RECIPE: Final = "set by the recipe"
"""Level of a value that the recipe sets itself."""
NO_ENGINE: Final = "none"
NO_FLAG: Final = "none"
"""What a profile says where no flag changes a value."""
DEFAULT: Final = "default"
"""What a value is set by that its engine has without being told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Values for the nodes it selects, by op, by node name or by a fused chain of ops, and where it was written.

    `set_by` is what a user of that engine gives it to have these values (None: nothing), `changed_by` what would give
    others (`none`: nothing; None: leaving `set_by` out), `profile` the profile it stands in.

    Exactly one of `op`, `nodes`, `fusion`, `placement` and `fault` (faults, by their text) is set; a fusion has its
    `chain` of ops and keys that start with an op; a placement (`tensor`) concerns all ops with its attribute but those
    in `without`, and of `groups` that attend apart only what each computes (`apart`), or what all do together; of a
    `pipeline` only what closes its stages.
    `cases` are the steps of a schedule in which it holds (None: all).
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
    cases: tuple[Case, ...] | None = None
    values: tuple[tuple[str, Value], ...]
    where: Where
    evidence: str
    set_by: str | None = None
    changed_by: str | None = None
    profile: str | None = None

    def holds_in(self, case: Case) -> bool:
        """Whether it says anything of the steps of this case, which is cut where it begins and ends."""
        return self.cases is None or any(contains(own_case, case) for own_case in self.cases)

    def may_concern(self, model_type: str, ops: Container[str]) -> bool:
        """Whether it may set anything in a graph of this type with these ops."""
        needed_ops = self.chain or (() if self.op is None else (self.op,))
        return (self.model_types is None or model_type in self.model_types) and all(op in ops for op in needed_ops)

    @property
    def by_sequence(self) -> bool:
        """Whether it goes by numbers that are a sequence's own, which attention alone does."""
        return any(name in parse(case)[1] for case in self.cases or () for name in OF_ATTENTION)

    @property
    def cause(self) -> str:
        """What makes the engine run these values: a flag, or its default, and the profile that says so.

        The profile alone where that claims nothing of the engine; empty outside profiles.
        """
        if self.profile is None:
            return ""
        if self.set_by is None and self.level == UNKNOWN:
            return self.profile
        return f"{self.set_by or DEFAULT} ({self.profile})"

    @property
    def change(self) -> str:
        """What a user of that engine would do to have other values; empty where nothing is known to."""
        if self.changed_by is None:
            return "" if self.set_by is None else f"leaving out {self.set_by}"
        return "" if self.changed_by == NO_FLAG else self.changed_by

    @property
    def level(self) -> str:
        """How sure it is: one of the levels of evidence, `unknown`, or who set it."""
        return self._level_and_source[0]

    @property
    def source(self) -> str:
        """What that rests on; empty where nothing is said of it."""
        return self._level_and_source[1]

    @property
    def _level_and_source(self) -> tuple[str, str]:
        """`evidence` taken apart; `verified` begins `verified: ptx` too, so that the longest level counts."""
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
        """What a report calls this rule: `op combine`, `fusion ar_norm`, `placement tensor`, `fault norm-eps(eps=0.1)`,
        or the selector.
        """
        if self.placement is not None:
            return f"placement {self.placement}"
        if self.fault is not None:
            return f"fault {self.fault}"
        return f"op {self.op}" if self.op else f"fusion {self.fusion}" if self.fusion else str(self.nodes)

    @property
    def is_overlay(self) -> bool:
        """Whether all it sets is one choice seen from outside, whatever it is made of: a fusion, placement or fault."""
        return any(part is not None for part in (self.fusion, self.placement, self.fault))

    @property
    def narrowness(self) -> int:
        """The larger, the closer the rule points at a node: op, fusion, selector."""
        return 2 if self.nodes else 1 if self.fusion else 0
