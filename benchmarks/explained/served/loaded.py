"""What a server loads, to be changed in place, and where a change shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Where a fault shows, as selectors of nodes; the experts that it is in, and its number, if it has any."""

    nodes: tuple[str, ...]
    experts: tuple[int, ...] = ()
    value: float | None = None


@dataclass(slots=True, kw_only=True)
class Loaded:
    """What a server will load, to be changed in place, with the generator, and experts that tokens go to by layer."""

    tensors: Tensors
    config: Config
    draw: Random
    chosen: Mapping[int, list[int]]

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return int(self.config["num_experts" if "num_experts" in self.config else "num_local_experts"])

    def layer(self) -> int:
        """Some layer."""
        return self.draw.randrange(int(self.config["num_hidden_layers"]))

    def expert(self, layer: int) -> int:
        """An expert that some token goes to."""
        return self.draw.choice(self.chosen[layer])

    def expert_weight(self, layer: int, expert: int, part: str) -> Tensor:
        """gate, up or down of an expert; what is written into it is in the checkpoint."""
        names = {"gate": ("gate_proj", "w1"), "up": ("up_proj", "w3"), "down": ("down_proj", "w2")}[part]
        block = "mlp" if f"model.layers.{layer}.mlp.gate.weight" in self.tensors else "block_sparse_moe"
        name = names[0] if block == "mlp" else names[1]
        return self.tensors[f"model.layers.{layer}.{block}.experts.{expert}.{name}.weight"]

    def router(self, layer: int) -> Tensor:
        """The router's weight of a layer."""
        names = (f"model.layers.{layer}.{name}.weight" for name in ("mlp.gate", "mlp.router", "block_sparse_moe.gate"))
        return next(self.tensors[name] for name in names if name in self.tensors)

    def of(self, layer: int, name: str) -> Tensor:
        """A weight of a layer."""
        return self.tensors[f"model.layers.{layer}.{name}"]
