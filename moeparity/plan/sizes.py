"""Conditions on a model's sizes (numbers of experts and heads, widths) that restrict a rule of a profile.

A size has the name that the model's graph file gives it (`sizes:`), and means the whole model, not one rank's part. A
rule with a condition on a size does not apply to a model that has no such size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from moeparity.plan.schedule.cases import ALL, Range

Size = Literal[
    "hidden",
    "vocab",
    "heads",
    "kv_heads",
    "head_dim",
    "latent",
    "intermediate",
    "experts",
    "top_k",
    "groups",
    "top_groups",
    "group_experts",
    "expert_width",
    "shared_width",
    "key_dim",
]
"""The sizes that a rule may have conditions on."""


class Numbers(NamedTuple):
    """A set of whole numbers: the multiples of `multiple_of` in `range`, of `listed` ones only where there are any."""

    listed: tuple[int, ...] = ()
    range: Range = ALL
    multiple_of: int = 1

    def hold(self, number: int) -> bool:
        """Whether a number is in the set."""
        return (not self.listed or number in self.listed) and self.range.holds(number) and not number % self.multiple_of

    def __str__(self) -> str:
        """`64, 128`, `from 256`, `below 256 in multiples of 16`."""
        first, last = self.range
        words = [", ".join(map(str, self.listed))] if self.listed else []
        words += [f"from {first}"] if first else []
        words += [f"below {last}"] if last is not None else []
        words += [f"in multiples of {self.multiple_of}"] if self.multiple_of > 1 else []
        return " ".join(words)


Condition = tuple[tuple[str, Numbers], ...]
"""Names of sizes, each with the set that it has to be in; empty: no condition."""


def meet(sizes: Mapping[str, int], condition: Condition) -> bool:
    """Whether a model's sizes meet a condition."""
    return all(name in sizes and numbers.hold(sizes[name]) for name, numbers in condition)


def described(condition: Condition) -> str:
    """`experts 64, 128; vocab in multiples of 16`; empty without a condition."""
    return "; ".join(f"{name} {numbers}" for name, numbers in condition)
