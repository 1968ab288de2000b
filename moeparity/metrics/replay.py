"""Recorded routes as a trainer replays them that reads them at other places, or has none for some tokens.

Each way is a mistake that is known of a replay, under the name that reports print.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

Instead = Literal["own", "zeros", "range"]
NO_ROUTE: Final = -1
"""In each slot of a token without a route, whose experts the router chooses itself."""
_INSTEAD: Final[Sequence[tuple[Instead, str]]] = (
    ("zeros", "expert 0"),
    ("range", "the first experts"),
    ("own", "own choices"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which routes a trainer takes over for each of its tokens and routers.

    Those of the token `tokens` plus `pads` times the pads of its row further on, and of the router `layers` further on.
    without: tokens whose routes it does not have: those of the prompt, or those behind the first `length` of a row.
    instead: what it takes where there is none: its routers' `own` choice; `zeros`, expert 0 in each slot; or `range`,
    the experts 0 to K - 1. by_slot: it puts the experts into the slots of its own weights, whoever these belong to.
    """

    tokens: int = 0
    pads: int = 0
    layers: int = 0
    without: Literal["", "prompt", "end"] = ""
    length: int = 0
    instead: Instead = "own"
    by_slot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A mistake of a replay: its name, what such a trainer did (a clause), and the routes that it takes over."""

    name: str
    says: str
    replay: Replay


def replayed(routes: Tensor, real: Tensor, prompts: Sequence[int], replay: Replay) -> Tensor:
    """The routes that a trainer takes over: int64 [B, T, L, K], NO_ROUTE where its routers choose themselves.

    routes: int64 [B, T, L, K], NO_ROUTE where none was recorded. real: bool [B, T], false at padding, which keeps its
    own routes. prompts: how many of each row's real tokens are prompt; used where `replay.without` says so.
    """
    moved = torch.full_like(routes, NO_ROUTE)
    length, layers = routes.shape[1:3]
    from_layers = torch.arange(layers) + replay.layers
    has_layer = (from_layers >= 0) & (from_layers < layers)
    for row, of_row in enumerate(real.cpu()):
        places = torch.arange(length)
        from_places = places + replay.tokens + replay.pads * (length - int(of_row.sum()))
        number = of_row.cumsum(0) - 1
        has_token = of_row & (from_places >= 0) & (from_places < length)
        if replay.without:
            has_token &= number >= prompts[row] if replay.without == "prompt" else number < replay.length
        rows = routes[row][from_places.clamp(0, length - 1)][:, from_layers.clamp(0, layers - 1)]
        there = has_token[:, None] & has_layer[None] & (rows >= 0).all(-1)
        filled = torch.where(of_row[:, None, None], _instead(routes, replay), NO_ROUTE)
        moved[row] = torch.where(there[..., None], rows, filled)
    return moved


def _instead(routes: Tensor, replay: Replay) -> Tensor:
    """What stands in the slots of a token without a route, int64 [K]."""
    slots = torch.arange(routes.shape[-1])
    return {"own": torch.full_like(slots, NO_ROUTE), "zeros": torch.zeros_like(slots), "range": slots}[replay.instead]


def displaced(*, layers: int, pads: bool, furthest: int = 1) -> Iterator[Trap]:
    """Routes of other places, of up to `furthest` tokens away. layers: how many routers there are. pads: whether rows
    have padding, so that it matters at which end.
    """
    for by in (by for far in range(1, furthest + 1) for by in (-far, far)):
        side, word = ("before", "before") if by < 0 else ("behind", "after")
        count = "1 token" if abs(by) == 1 else f"{abs(by)} tokens"
        says = f"took over for each token the experts of the token {abs(by)} {word} it"
        yield Trap(name=f"{count} {side}", says=says, replay=Replay(tokens=by))
    for by in (-1, 1) if layers > 1 else ():
        side, word = ("before", "before") if by < 0 else ("behind", "after")
        says = f"took over for each MoE layer the experts of the layer {word} it"
        yield Trap(name=f"the layer {side}", says=says, replay=Replay(layers=by))
    for by in (-1, 1) if pads else ():
        side = "left" if by < 0 else "right"
        says = f"took over the experts of rows padded on the {side} for rows padded on the other side"
        yield Trap(name=f"rows padded on the {side}", says=says, replay=Replay(pads=by))


def leading_dense(routed: Sequence[int]) -> int:
    """How many layers without a router come before those with one, whose numbers are given; 0 where some lie between
    these.
    """
    first = routed[0]
    return first if list(routed) == list(range(first, first + len(routed))) else 0


def incomplete(*, dense: int, prompts: bool, lengths: Sequence[int], gaps: bool = False) -> Iterator[Trap]:
    """Routes that are not there for some tokens or layers, and weights of other experts.

    dense: as `leading_dense` says. prompts: whether prompts have more than
    one token. lengths: after how many tokens a record may end. gaps: whether the record lacks routes of some tokens.
    """
    yield Trap(
        name="own weights by slot",
        says="put the replayed experts into the slots of its own weights, which belong to other experts",
        replay=Replay(by_slot=True),
    )
    if dense:
        says = "counted MoE layers alone in a record of all layers, whose dense ones are zeros: expert 0 in each slot"
        yield Trap(name="dense layers counted", says=says, replay=Replay(layers=-dense, instead="zeros"))
    for value, words in _INSTEAD[:2] if gaps else ():
        says = f"took {words} where no route was recorded, as behind a prefix cache"
        yield Trap(name=f"no route as {words}", says=says, replay=Replay(instead=value))
    for value, words in _INSTEAD if prompts else ():
        says = f"had no routes of prompts, as behind a prefix cache, and took {words} there"
        yield Trap(name=f"prompts as {words}", says=says, replay=Replay(without="prompt", instead=value))
    for count in lengths:
        for value, words in _INSTEAD[::2]:
            yield Trap(
                name=f"{words} behind token {count}",
                says=f"had routes of the first {count} tokens, and took {words} behind them",
                replay=Replay(without="end", length=count, instead=value),
            )
