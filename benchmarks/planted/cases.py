"""Decoy cases: which checkpoint, which attributes differ. Drawn from a seed, without torch and without moeparity."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from benchmarks.planted import attributes
from benchmarks.planted.attributes import ALONE, ONLY, Value

Background = Literal["fp32", "bf16", "mixed", "clean"]
FAMILIES = ("qwen3_moe", "mixtral", "qwen2_moe", "glm4_moe")
LAYERS = 2
SEQUENCES, TOKENS, CHUNKS = 96, 24, 2
"""What moeparity is given, and how many such chunks the truth is taken over, the one given being the first."""
LEAST, MOST = 12, 14
"""How many attributes differ."""
PATIENCE = 6
"""After so many draws a case is content with one culprit fewer."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One attribute that differs: `selector:attribute`, with its value on either side."""

    selector: str
    attribute: str
    reference: Value
    candidate: Value

    @property
    def key(self) -> str:
        """As a recipe's `set:` names it."""
        return f"{self.selector}:{self.attribute}"


@dataclass(frozen=True, slots=True)
class Case:
    """A pair of sides over one checkpoint. `stored` is the checkpoint's dtype, `dtype` that of both sides.

    `damped`: see `checkpoints.write`. In fp32 a token whose experts change costs as much as thousands of roundings,
    unless experts add little; and what a handful of tokens cost is no share that so few sequences could resolve.
    """

    number: int
    attempt: int
    background: Background
    family: str
    stored: str
    dtype: str
    damped: float
    planted: tuple[Planted, ...]

    @property
    def seed(self) -> int:
        """Of the checkpoint, and of its tokens."""
        return 1000 * self.number + self.attempt

    def data(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def read(data: dict[str, Any]) -> Case:
    """The inverse of `Case.data`."""
    return Case(**{**data, "planted": tuple(Planted(**each) for each in data["planted"])})


FIRST = 600
"""The number of the first case of the page, in both suites: what is judged how was settled on those before."""


def background(number: int) -> Background:
    """What a case has: a third each of fp32, bf16 and mixed in turn, and on top of them one clean pair in ten."""
    first, second, third, clean = get_args(Background)
    turn: list[Background] = [*[first, second, third] * 3, clean]
    return turn[number % len(turn)]


@dataclass(frozen=True, slots=True)
class Draft:
    """A draw before it is cast: who may matter, in random order, and who is not meant to.

    wanted: how many of `large` are taken. total: how many attributes differ in the end.
    """

    case: Case
    large: tuple[Planted, ...]
    wanted: int
    beside: tuple[Planted, ...]
    small: tuple[Planted, ...]
    idle: tuple[Planted, ...]
    total: int

    def cast(self, chosen: Sequence[Planted]) -> Case:
        """The case in which those chosen matter, filled up with what does not."""
        members = list(chosen)
        for pool, most in ((self.beside, len(self.beside)), (self.small, len(self.small)), (self.idle, self.total)):
            for planted in pool[:most]:
                if len(members) < self.total and compatible(planted, members):
                    members.append(planted)
        random.Random(self.case.seed).shuffle(members)  # noqa: S311 - a reproducible draw
        return replace(self.case, planted=tuple(members))


def draw(number: int, attempt: int, background: Background) -> Draft:
    """One draw; the same arguments give the same case."""
    rng = random.Random(f"{number} {attempt} {background}")  # noqa: S311 - a reproducible draw
    family = rng.choice(FAMILIES)
    dtype = rng.choice(("fp32", "bf16")) if background == "clean" else "fp32" if background == "fp32" else "bf16"
    stored = rng.choice(("bfloat16", "float32")) if background == "fp32" else "bfloat16"
    damped = 0.1 if background == "fp32" else 0.5
    table = attributes.FP32 if dtype == "fp32" else attributes.BF16
    # Weights stored in bf16 are not changed by that dtype.
    idle = [each for each in table["none"] if stored == "bfloat16" or each[1] != "bf16"]
    large, small = (tuple(shuffled(rng, table[kind], family, dtype)) for kind in ("large", "small"))
    clean, mixed = background == "clean", background == "mixed"
    return Draft(
        case=Case(number, attempt, background, family, stored, dtype, damped, ()),
        large=tuple(shuffled(rng, attributes.SEMANTIC, family, dtype)) if mixed else large,
        wanted=0
        if clean
        else rng.choice((1, 2, 3) if mixed else (2, 3, 4))
        if dtype == "bf16"
        else max(1, 1 + number % 4 - attempt // PATIENCE),
        beside=large[: rng.choice((1, 2))] if mixed else (),
        small=() if clean else small[: rng.choice((2, 3, 4) if dtype == "fp32" else (0, 1, 2))],
        # One layer at a time first: there are more such places.
        idle=tuple(sorted(shuffled(rng, idle, family, dtype), key=lambda each: "*" in each.selector)),
        total=rng.randint(LEAST, MOST),
    )


def compatible(planted: Planted, others: Sequence[Planted]) -> bool:
    """Whether an attribute can differ beside others."""
    return not any(_clash(planted, planted_before) for planted_before in others)


def shuffled(rng: random.Random, pool: Sequence[tuple[str, Value]], family: str, dtype: str) -> Iterator[Planted]:
    """A pool at every single layer and at all of them, in random order, as far as a family has it."""
    places = [
        (place.replace("[L]", layer), value)
        for place, value in pool
        if _has(family, place, value)
        for layer in (("[0]", "[1]", "[*]") if "[L]" in place else ("",))
    ]
    rng.shuffle(places)
    for key, value in places:
        selector, _, attribute = key.rpartition(":")
        narrow = value == "bf16" and dtype == "fp32" and attribute != "weight" and rng.random() < 0.3
        family_eps = 1e-6 if family in {"qwen3_moe", "qwen2_moe"} else 1e-5
        node = selector.rpartition(".")[2]
        chosen = "fp16" if narrow else family_eps if value == "same" else value
        yield Planted(selector, attribute, _reference(node, attribute, family), chosen)


def _has(family: str, place: str, value: Value) -> bool:
    node, attribute = place.rpartition(":")[0].rpartition(".")[2], place.rpartition(":")[2]
    keys = (node, f"{node}:{attribute}", f"{node}:{attribute}={value}")
    return all(family in ONLY.get(key, FAMILIES) for key in keys)


_FORMS: dict[str, Value] = {
    "eps": "config",
    "offset": 0.0,
    "association": "x_rstd_first",
    "norm:order": "native",
    "combine:order": "sequential",
    "mean": "native",
    "rsqrt": "native",
    "softmax": "native",
    "sigmoid": "native",
    "implementation": "eager",
    "kv_layout": "projected",
    "timing": "before_topk",
    "rank_on": "scores",
    "tie_break": "torch_topk",
    "renormalize": "divide",
    "renormalize_order": "native",
    "gate_up": "fused",
    "leaves": "expert",
    "weight": "fp32",
    "square": "fp32",
    "correction": "fp32",
    "quotient": "fp32",
    "router:scores": "fp32",
}


def _reference(node: str, attribute: str, family: str) -> Value:
    """What transformers does, which the reference is."""
    if attribute == "renormalize_eps":
        return 1e-20 if family == "glm4_moe" else 0.0
    if family == "glm4_moe" and node in {"gate", "router"} and attribute in {"inputs", "output", "weights"}:
        return "fp32"
    if family == "mixtral" and (node, attribute) == ("router", "weights"):
        return "fp32"
    form = _FORMS.get(attribute, _FORMS.get(f"{node}:{attribute}"))
    return "model" if form is None else form


def _clash(first: Planted, second: Planted) -> bool:
    """Whether both are at one node and cannot be there together."""
    if not _overlap(first.selector, second.selector):
        return False
    return first.attribute == second.attribute or bool({first.attribute, second.attribute} & ALONE)


def _overlap(first: str, second: str) -> bool:
    if first.rpartition(".")[2] != second.rpartition(".")[2]:
        return False
    return first == second or (first.partition(".")[2] == second.partition(".")[2] and "*" in first + second)
