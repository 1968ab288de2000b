"""What is drawn for each run: by quota what is planted in which architecture, then the fault itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from benchmarks.doctor.faults import code_mistakes, numbers, routing_mistakes, tempered, unlisted
from benchmarks.doctor.models import ARCHITECTURES, Architecture
from benchmarks.doctor.places import loaded_as, misplaced
from tests.doctor.faulty import (
    cut_to,
    decoded_otherwise,
    dropping,
    first_twice,
    moved_response,
    older_prompt,
    packed,
    renormalised,
    replaying,
    routes_of,
    without_first,
)
from tests.doctor.programs import Patch, drifted, scored

PROMPT = 8
CLEAN, TWO, UNLISTED, ROUTES, PLACES = "clean", "two", "unlisted", "routes", "places"
CLASSES = (
    "stale layer",
    "stale part",
    PLACES,
    "router",
    "code",
    "number",
    "sampling",
    "tokens",
    "positions",
    "steps",
    ROUTES,
    TWO,
    UNLISTED,
)
_FAULTY, _ALL = 4, 9
"""So many of so many runs have a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What a fault is planted in: a model, its weights, those before the update, which are a `fraction` off, and the
    tokens.
    """

    architecture: Architecture
    current: Path
    previous: Path
    fraction: float
    ids: Tensor


Scorer = Callable[[], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is planted. truth: the names to be given; () if there are none. bad: what the faulty side says of the
    tokens; None if it is as good as the other. good: what is wrong with the other side. value: the number.
    unlisted: what a fault is called that no hypothesis is.
    """

    truth: tuple[str, ...] = ()
    bad: Scorer | None = None
    good: Patch | None = None
    value: float | None = None
    unlisted: str = ""


def slot(number: int) -> tuple[str, Architecture]:
    """The class and the architecture of a run, so that the first runs of any count have of each about its share."""
    turn, place = divmod(number, _ALL)
    is_faulty = place % 2 == 1
    if is_faulty:
        count = turn * _FAULTY + place // 2
        around, which = divmod(count, len(CLASSES))
        return CLASSES[which], ARCHITECTURES[(around + which) % len(ARCHITECTURES)]
    return CLEAN, ARCHITECTURES[(turn * (_ALL - _FAULTY) + place // 2) % len(ARCHITECTURES)]


def plan(kind: str, draw: Random, of: Programs) -> Plan:
    """A fault of a class."""
    if kind == CLEAN:
        return Plan()
    if kind == TWO:
        return _two(draw, of)
    if kind in {"stale layer", "stale part"}:
        whole, parts = stale(of.architecture)
        name, pattern = draw.choice(tuple((whole if kind == "stale layer" else parts).items()))
        return Plan(truth=(name,), bad=partial(scored, _mixed(of, pattern), of.ids, 4))
    if kind in {"router", "code"}:
        mistakes = routing_mistakes if kind == "router" else code_mistakes
        name, patch = draw.choice(tuple(mistakes(of.architecture).items()))
        return Plan(truth=(name,), bad=partial(scored, of.current, of.ids, 4, patch=patch))
    if kind == "number":
        family, (planted, values) = draw.choice(tuple(numbers(of.architecture).items()))
        value = draw.choice(values)
        return Plan(
            truth=(family,), value=value, bad=partial(scored, of.current, of.ids, 4, patch=partial(planted, value))
        )
    if kind == PLACES:
        name, rewrite = draw.choice(tuple(misplaced(of.architecture, of.current, draw).items()))
        wrong = loaded_as(of.current, of.previous.parent / "misplaced", rewrite)
        return Plan(truth=(name,), bad=partial(scored, wrong, of.ids, 4))
    if kind == UNLISTED:
        name, patch = draw.choice(tuple(unlisted(of.architecture).items()))
        return Plan(unlisted=name, bad=partial(scored, of.current, of.ids, 4, patch=patch))
    name, bad = draw.choice(tuple(_OF_TOKENS[kind](draw, of).items()))
    return Plan(truth=(name,), bad=bad)


def _two(draw: Random, of: Programs) -> Plan:
    """Stale weights and a mistake in the code, at one side or one at each."""
    name, pattern = draw.choice(tuple(stale(of.architecture)[0].items()))
    mistakes = {**routing_mistakes(of.architecture), **code_mistakes(of.architecture)}
    mistake, patch = draw.choice(tuple(mistakes.items()))
    # A tied head reads no weights of its own, so that stale ones at its side have no effect.
    together = draw.random() < 1 / 2 and (mistake, pattern) != ("head-tied", "lm_head.")
    bad = partial(scored, _mixed(of, pattern), of.ids, 4, patch=patch if together else None)
    return Plan(truth=(name, mistake), bad=bad, good=None if together else patch)


def _mixed(of: Programs, stale_part: str) -> Path:
    """The weights of which a part is as it was."""
    folder = of.previous.parent / "mixed"
    return drifted(of.current, folder, lambda name: stale_part not in name, fraction=of.fraction)


def stale(of: Architecture) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """By the cause to be named, the weights that are as they were: whole layers, kinds and ends; nodes and experts."""
    whole = {
        "stale weights of layer 0": ".layers.0.",
        "stale weights of layer 1": ".layers.1.",
        "stale weights of attention of layer 0": ".layers.0.self_attn.",
        "stale weights of attention of layer 1": ".layers.1.self_attn.",
        "stale weights of attention of all layers": ".self_attn.",
        "stale weights of lm_head": "lm_head.",
        "stale weights of embed": "embed_tokens.",
    }
    parts = {
        "stale weights of layers[1].moe.experts": ".layers.1.mlp.experts.",
        "stale weights of layers[1].attention.o_proj": ".layers.1.self_attn.o_proj.",
        "stale weights of layers[0].attention.o_proj": ".layers.0.self_attn.o_proj.",
        "stale expert 3 of layers[1].moe.experts": ".layers.1.mlp.experts.3.",
    }
    if not of.dense:
        whole["stale weights of routed experts of all layers"] = ".mlp.experts."
        parts |= {
            "stale weights of layers[0].moe.experts": ".layers.0.mlp.experts.",
            "stale weights of layers[0].moe.gate": ".layers.0.mlp.gate.",
            "stale weights of layers[0].attention.v_proj": ".layers.0.self_attn.v_proj.",
            "stale expert 7 of layers[0].moe.experts": ".layers.0.mlp.experts.7.",
        }
    return whole, parts


def _sampling(draw: Random, of: Programs) -> dict[str, Scorer]:
    top_k, temperature = draw.choice((5, 10, 20)), draw.choice((0.6, 0.8, 1.3))
    head = partial(tempered, temperature)
    return {
        f"top_k={top_k}": partial(cut_to, of.current, of.ids, top_k),
        f"temperature-in-the-head(temperature={temperature:g})": partial(scored, of.current, of.ids, 4, patch=head),
        "values 1 late": lambda: scored(of.current, of.ids, 4).roll(1, -1),
    }


def _tokens(draw: Random, of: Programs) -> dict[str, Scorer]:
    count, pack = draw.choice((1, 2, 3)), draw.choice((2, 4))
    plural = "first token missing" if count == 1 else f"first {count} tokens missing"
    return {
        plural: partial(without_first, of.current, of.ids, count),
        "first token twice": partial(first_twice, of.current, of.ids),
        f"packing without its mask, positions running, {pack} sequences": partial(packed, of.current, of.ids, pack),
    }


def _positions(draw: Random, of: Programs) -> dict[str, Scorer]:
    by = draw.choice((-1, 1, 2))
    return {f"positions of the response {by:+d}": partial(moved_response, of.current, of.ids, PROMPT, by)}


def _steps(draw: Random, of: Programs) -> dict[str, Scorer]:
    older = draw.choice((4, 12))
    return {
        "prompt computed with older weights": partial(older_prompt, of.current, of.previous, of.ids, PROMPT),
        f"first {older} tokens computed with older weights": partial(
            older_prompt, of.current, of.previous, of.ids, older
        ),
        "renormalisation in decoding alone": partial(decoded_otherwise, of.current, of.ids, PROMPT, renormalised),
    }


def _routes(draw: Random, of: Programs) -> dict[str, Scorer]:
    """Routes of the log replayed at another place, where routers take a softmax; experts that are full."""
    length = of.ids.shape[1]
    capacity = draw.choice((5, 10, 20))
    full: Scorer = partial(scored, of.current, of.ids, 1, patch=dropping(capacity))
    faults = {f"capacity-drop(capacity={capacity})": full}
    if not of.architecture.is_softmax:
        return faults
    by = draw.choice((-1, 1))
    place = f"1 token {'before' if by < 0 else 'behind'}"

    def replayed(tokens: int, layers: int) -> Tensor:
        routes = routes_of(of.current, of.ids)
        misplaced = torch.full_like(routes, -1)
        at = torch.arange(max(0, -tokens), length - max(0, tokens))
        last = routes.shape[2] - layers
        misplaced[:, at, :last] = routes[:, at + tokens, layers:]
        return scored(of.current, of.ids, 4, patch=replaying(misplaced))

    return faults | {
        f"replayed routes of {place}": partial(replayed, by, 0),
        "replayed routes of the layer behind": partial(replayed, 0, 1),
    }


_OF_TOKENS: Mapping[str, Callable[[Random, Programs], dict[str, Scorer]]] = {
    "sampling": _sampling,
    "tokens": _tokens,
    "positions": _positions,
    "steps": _steps,
    ROUTES: _routes,
}
