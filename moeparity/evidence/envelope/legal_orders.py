"""Other legal orders of a node's sums: the same op, dtypes and roundings, another order of the same leaves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.numerics.orders import NATIVE, Level, Order, parse
from moeparity.plan.graph import Node

Settings = Mapping[str, Any]
Inputs = Sequence[Tensor | None]
Draw = Callable[[int], Tensor]
"""From a seed to the node's output in another order."""

TOKENS = 512
"""So many tokens of the first sequences are drawn for; where an op needs whole sequences, at least one."""
STEPS = 1 << 27
"""Products that a draw of a GEMM adds up at most: it then takes fewer tokens, since orders written out are slow."""

_GROWN = ("kahan", "neumaier", "fma", "zero")
_SHIFT = 32
"""Padded keys in front of an attention's own, at most: they move every key to another place of the kernel's blocks."""
_PARTS = 4
"""Axes of an all-reduce's input: [B, ranks, T, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A node as its kernel is called: inputs, weights by port, settings; all on a few sequences."""

    node: Node
    inputs: Inputs
    weights: Mapping[str, Tensor]
    at: Settings

    def output(self, settings: Settings | None = None) -> Tensor:
        """What the kernel makes of it, with some settings otherwise; of a router its weights."""
        out = self.node.op.load()(*self.inputs, w=self.weights, p=self.node.params, at={**self.at, **(settings or {})})
        value: Tensor = out[1] if isinstance(out, tuple) else out
        return value


def extent(node: Node, size: tuple[int, int], *, slots: int = 1, whole: bool = True) -> tuple[int, int | None]:
    """Of so many sequences and tokens, how many of the first sequences are drawn for, and of each how many of its first
    tokens (None: all of them). `slots`: rows that a token has; `whole`: whether the value lies in no partial sums.
    """
    sequences, length = size
    # An op that reads other tokens, or a value with another axis before that of the tokens.
    if node.op.tokens.mixes or node.op.role.reduces or not whole:
        return min(sequences, max(1, TOKENS // length)), None
    budget = TOKENS
    if node.op.role.gemm:
        products = sum(math.prod(ref.shape) for ref in node.weights.values())
        budget = min(budget, max(1, STEPS // (products * slots)))
    return (1, budget) if budget < length else (min(sequences, budget // length), None)


def orders_of(call: Call) -> Draw | str | None:
    """Draws of the call's output in other orders; a reason where its orders cannot be drawn; None without a sum.

    Orders are permutations of the leaves, added one after the other, of every sum that the node's settings name; in an
    attention permuted head dimensions and keys at other places of the kernel's blocks; in an all-reduce by a library
    permuted ranks. What each step is rounded to stays as the settings say.
    """
    if call.node.op.tokens.state is not None:
        return "its sums go on from step to step, and their order is that of the tokens"
    if call.node.op.tokens.mixes:
        return _attention(call)
    orders = {a.name: str(call.at[a.name]) for a in call.node.op.attributes if a.order and a.name in call.at}
    if call.node.op.role.reduces and call.at.get("collective", "none") != "none":
        return _ranks(call)
    sum_settings = {a.name: a.same_sums.get(str(call.at.get(a.name))) for a in call.node.op.attributes}
    settings = {name: value for name, value in sum_settings.items() if value is not None}
    if settings:
        return lambda seed: call.output({**settings, "order": f"unordered({seed})"})
    if not orders:
        return None
    for attribute, value in orders.items():
        if value != NATIVE and _own_arithmetic(value):
            return f"{attribute} {value} states an arithmetic of its own"
    return lambda seed: call.output({a: _redrawn(v, seed) for a, v in orders.items()})


def _own_arithmetic(value: str) -> bool:
    """Whether an order says more than an order: dtypes or roundings of its levels, or exact sums of several leaves."""
    levels = _levels(value)
    return any(level is None or level.accumulate or level.round or level.name in {"fused", "tree"} for level in levels)


def _levels(value: str) -> Sequence[Level | None]:
    """The levels of an order; [None] for a launch rule, such as a library's name, that is no order of the algebra."""
    try:
        return parse(value).levels
    except ValueError:
        return [None]


def _redrawn(value: str, seed: int) -> str:
    """A random order to add in, drawn by the seed. It keeps what the given order says beside the order: whether sums
    are compensated, multiply-adds contracted, or a zero comes first.
    """
    levels = [] if value == NATIVE else [level for level in _levels(value) if level is not None]
    words = tuple(dict.fromkeys(word for level in levels for word in level.words if word in _GROWN))
    return str(Order((Level(name="unordered", numbers=(seed,), words=words),)))


def _ranks(call: Call) -> Draw | None:
    x = call.inputs[0]
    if x is None or x.dim() != _PARTS:
        return None
    return lambda seed: replace(
        call, inputs=[x[:, _permutation(x.shape[1], seed)].contiguous(), *call.inputs[1:]]
    ).output()


def _attention(call: Call) -> Draw:
    def draw(seed: int) -> Tensor:
        shift = random.Random(seed).randrange(1, _SHIFT)  # noqa: S311
        permuted_call, op = _permuted(call, seed), call.node.op
        values = dict(zip(call.node.ports, permuted_call.inputs, strict=True))
        inputs = {
            port: None if x is None else _behind(x, shift, op.tokens.input_axes.get(port, 1))
            for port, x in values.items()
        }
        mask = values["mask"]
        assert mask is not None, "attention reads the mask"
        # [B, T], or in a pack [B, T, T], whose further queries see nothing either.
        inputs["mask"] = F.pad(mask, (shift, 0) * (mask.dim() - 1))
        values_by_order = {
            a.name: str(call.at[a.name]) for a in call.node.op.attributes if a.order and a.name in call.at
        }
        orders = {name: _redrawn(value, seed) for name, value in values_by_order.items() if not _own_arithmetic(value)}
        return replace(permuted_call, inputs=list(inputs.values())).output(orders)[:, shift:]

    return draw


def _permuted(call: Call, seed: int) -> Call:
    """What is added up over the last axes of inputs and weights in another order."""
    inputs, weights = dict(zip(call.node.ports, call.inputs, strict=True)), dict(call.weights)
    for i, group in enumerate(call.node.op.role.contracted):
        tensors = {name: x for name in group if (x := inputs.get(name, weights.get(name))) is not None}
        tensor = next(iter(tensors.values()))
        order = _permutation(tensor.shape[-1], seed + i).to(tensor.device)
        for name, x in tensors.items():
            (inputs if name in inputs else weights)[name] = x[..., order]
    return replace(call, inputs=list(inputs.values()), weights=weights)


def _behind(x: Tensor, shift: int, axis: int) -> Tensor:
    """x with so many tokens in front of it, copies of its first, which nobody sees."""
    return torch.cat([x.narrow(axis, 0, 1).expand(*x.shape[:axis], shift, *x.shape[axis + 1 :]), x], dim=axis)


def _permutation(length: int, seed: int) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))
