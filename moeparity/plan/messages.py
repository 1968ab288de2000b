"""Turns rules by the size of an all-reduce's message (`bytes:`, `ranks:`) into rules by rows.

The message of a step is what one rank hands to the all-reduce after attention or experts: the step's rows, padding rows
included, each as wide as the model, in the dtype that the side runs in. So for a given model, dtype and placement, a
number of bytes is a number of rows. Ranks are those of the placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from moeparity.errors import SpecError
from moeparity.plan.graph import Graph
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import ALL, MESSAGE, Case, Range, parse, write
from moeparity.plan.schedule.steps import TOGETHER, Groups

ITEMSIZE: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
"""Bytes of a number in each dtype that a model can run in."""


@dataclass(frozen=True, slots=True)
class RowMessage:
    """The message of one row of a step: its bytes, and over how many ranks it is added up (1: not at all).

    Under data-parallel attention (`groups`), what each group computes by itself is added up over its own
    `ranks_of_group` ranks, everything else over all `ranks`.
    """

    row_bytes: int
    ranks: int
    ranks_of_group: int = 1
    groups: Groups = TOGETHER

    @classmethod
    def of(cls, graph: Graph, dtype: str, placed: Iterable[Rule]) -> RowMessage:
        """The row message of a side that runs in `dtype`; `placed` are the rules of its placement."""
        head = graph.whole.makers[graph.output]
        while "weight" not in head.weights:
            head = graph.whole.makers[head.inputs[0]]
        cut = [rule for rule in placed if rule.placement in ("tensor", "expert")]
        own_ranks, every = (
            max((1, *(int(value) for rule in cut if rule.apart == apart for _, value in rule.values)))
            for apart in (True, False)
        )
        groups = next((rule.groups for rule in cut if rule.groups.count > 1), TOGETHER)
        return cls(head.weights["weight"].shape[-1] * ITEMSIZE[dtype], every, own_ranks, groups)

    def in_rows(self, rule: Rule) -> tuple[Rule, ...]:
        """The rule with its cases turned into cases by rows; without any case where it can apply to no step.

        Under data-parallel attention there are two rules: for what each group computes by itself, and for the rest.
        """
        if not is_by_message(rule):
            return (rule,)
        if self.groups.count == 1:
            return (self._over(self.ranks, rule),)
        of_each, of_all = (replace(rule, groups=self.groups, apart=apart) for apart in (True, False))
        return self._over(self.ranks_of_group, of_each), self._over(self.ranks, of_all)

    def _over(self, count: int, rule: Rule) -> Rule:
        cases = (self._case(count, case) for case in rule.cases or ())
        return replace(rule, cases=tuple(dict.fromkeys(filter(None, cases))))

    def _case(self, count: int, case: Case) -> Case | None:
        phase, ranges = parse(case)
        if not any(name in ranges for name in MESSAGE):
            return case
        if count == 1 or not ranges.get("ranks", ALL).holds(count):
            return None
        size, rows = ranges.get("bytes", ALL), ranges.get("rows", ALL)
        first = max(rows.first, -(-size.first // self.row_bytes))
        ends = [end for end in (rows.last, None if size.last is None else -(-size.last // self.row_bytes)) if end]
        last = min(ends, default=None)
        if last is not None and last <= max(first, 1):
            return None
        own_ranges = {name: numbers for name, numbers in ranges.items() if name not in MESSAGE}
        return write(phase, {**own_ranges, "rows": Range(first, last)})


def is_by_message(rule: Rule) -> bool:
    """Whether a rule depends on the bytes or ranks of a message."""
    return any(name in parse(case)[1] for case in rule.cases or () for name in MESSAGE)


def refuse_other_messages(rules: Iterable[Rule], dtype: str, messages: Iterable[tuple[str, str]]) -> None:
    """Raise SpecError where a rule by bytes applies and some partial sums have another item size than the side's dtype,
    so that bytes and rows do not correspond. `messages` are nodes and the dtypes of their partial sums.
    """
    unlike_message = next(((node, name) for node, name in messages if ITEMSIZE.get(name) != ITEMSIZE[dtype]), None)
    by_bytes = next(_by_bytes(rules), None)
    if unlike_message is not None and by_bytes is not None:
        raise SpecError(
            f"{by_bytes.where}: {by_bytes.label} depends on the bytes of a message in {dtype}, and the partial sums at "
            f"{unlike_message[0]} are {unlike_message[1]}. Say `rows` there, or leave partial sums in {dtype}."
        )


def _by_bytes(rules: Iterable[Rule]) -> Iterator[Rule]:
    return (rule for rule in rules if any("bytes" in parse(case)[1] for case in rule.cases or ()))
