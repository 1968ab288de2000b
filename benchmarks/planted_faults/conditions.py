"""What a draw knows of a checkpoint and its tokens: its nodes, and the reference's values at each, from a forward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import moeparity
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model
from moeparity.plan.address import file_key
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile, overrides

PROFILE = "hf-eager"
HERE = Where(Path(__file__))
CHANNELS = 12
"""So many channels are looked at for one that sets a token apart."""


@dataclass(frozen=True)
class Scene:
    """A model with its tokens [B, T] int64 and mask [B, T] bool, and the reference's micro-batch."""

    model: str
    opened: Model
    tokens: Tensor
    mask: Tensor
    micro_batch: int

    @cached_property
    def nodes(self) -> list[tuple[str, str]]:
        """Every node with its op, in the graph's order."""
        return [(node.name, node.op.name) for node in self.opened.graph.nodes]

    @cached_property
    def plan(self) -> Plan:
        """The reference's plan."""
        return bind(self.opened.graph, self.profile, self.opened.dtype)

    @cached_property
    def profile(self) -> Profile:
        """The profile of both sides."""
        return load_profile(PROFILE, HERE)

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Every value of the reference, by file key."""
        return moeparity.forward(
            self.opened, self.tokens, save=["**"], micro_batch=self.micro_batch, attention_mask=self.mask
        )

    def first_input(self, name: str) -> Tensor:
        """What a node reads first, as [B, T, channels]."""
        (node,) = (node for node in self.opened.graph.nodes if node.name == name)
        return self.values[file_key(node.inputs[0])].flatten(2)

    def regions(self, parts: Sequence[tuple[str, str]]) -> list[list[str]]:
        """The nodes of a region, of every block that has its closing node and first node."""
        wanted = [part for part, _ in parts]
        by_block: dict[str, list[str]] = {}
        for name, _ in self.nodes:
            block, _, own_name = name.rpartition(".")
            if own_name in wanted:
                by_block.setdefault(block, []).append(name)
        ends = (wanted[0], wanted[-1])
        return [
            nodes
            for nodes in by_block.values()
            if (_last_part(nodes[0]), _last_part(nodes[-1])) == ends and len(nodes) > 1
        ]

    def differs(self, name: str, attribute: str, value: Any) -> bool:
        """Whether a choice takes effect at a node, is another than the reference's there, and its op runs it."""
        if not self.active(name, attribute) or self.plan.settings[name, attribute].value == value:
            return False
        try:
            bind(self.opened.graph, self.profile, self.opened.dtype, overrides({f"{name}:{attribute}": value}, HERE))
        except SpecError:
            return False
        return True

    def active(self, name: str, attribute: str) -> bool:
        """Whether a choice takes effect at a node of the reference."""
        (node,) = (node for node in self.opened.graph.nodes if node.name == name)
        return attribute in self.plan.active(node)

    def one_token(self, name: str, rng: random.Random) -> str | None:
        """A condition that means one real token; None where no channel sets one apart."""
        x = self.first_input(name).float()
        return self._apart(x, self.mask, rng, "above")

    def one_sequence(self, name: str, rng: random.Random) -> str | None:
        """A condition that means all tokens of one sequence, by its first token."""
        x = self.first_input(name).float()
        first = torch.zeros_like(self.mask)
        first[:, 0] = True
        return self._apart(x, first, rng, "sequences")

    def _apart(self, x: Tensor, meant: Tensor, rng: random.Random, condition: str) -> str | None:
        gaps = []
        for channel in rng.sample(range(x.shape[-1]), min(CHANNELS, x.shape[-1])):
            column = x[..., channel]
            considered = column[meant] if condition == "sequences" else column.flatten()
            best = considered.sort(descending=True).values[:2].tolist()
            gaps.append((best[0] - best[1], channel, sum(best) / 2))
        gap, channel, threshold = max(gaps)
        where = x[..., channel] > threshold
        if gap <= 0 or not bool((where & meant).any()):
            return None
        return f"partial(spoilt.{condition}, channel={channel}, threshold={threshold!r})"

    def rarest(self, router: str) -> int:
        """Of the experts that a router sends real tokens to, the one with the fewest."""
        counts = torch.bincount(self.values[file_key(f"{router}.ids")][self.mask].flatten())
        return int(torch.where(counts > 0, counts, counts.max() + 1).argmin())


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
