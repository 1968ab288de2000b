"""A program of transformers and how it is patched: layers, forwards, and the experts that tokens go to."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a patch changes: a node by its name, and the words for it.

    Each of `words` is one right answer, as texts that all stand in one of the answers that give every bit; none where
    nothing that is known describes it. `without` is the same patch without one of its words.
    """

    node: str
    words: tuple[tuple[str, ...], ...] = ()
    without: Mapping[str, Callable[[Program], object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A model to be patched, the generator of what is drawn, and the experts that the tokens go to, by layer."""

    model: Any
    draw: Random
    chosen: dict[int, list[int]] = field(default_factory=dict)

    def layer(self) -> tuple[Any, str]:
        """Some layer with experts, and its address."""
        number = self.draw.choice(
            [i for i, layer in enumerate(self.model.model.layers) if hasattr(layer.mlp, "experts")]
        )
        return self.model.model.layers[number], f"layers[{number}]"

    def expert(self, at: str) -> int:
        """An expert of a layer that some token goes to."""
        return self.draw.choice(self.chosen[int(at[len("layers[") : -1])])


def with_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Another forward, which is handed the module and what the module is called with."""
    module.forward = types.MethodType(forward, module)


def after(module: nn.Module, change: Callable[[Any], Any]) -> None:
    """What a module gives, changed."""
    inner = module.forward
    with_forward(module, lambda _, *args, **kwargs: change(inner(*args, **kwargs)))


def called_with(module: nn.Module) -> list[Tensor]:
    """A list that holds what a module was last called with, once it is called."""
    last: list[Tensor] = []

    def keep(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        last[:] = [*args, *kwargs.values()][:1]

    module.register_forward_pre_hook(keep, with_kwargs=True)
    return last


def gives(module: nn.Module) -> list[Tensor]:
    """A list that holds what a module gave last, once it is called."""
    last: list[Tensor] = []
    module.register_forward_hook(lambda _, __, out: last.__setitem__(slice(None), [out]))
    return last
