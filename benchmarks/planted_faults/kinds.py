"""The kinds of cases, each a function that plants on a draft; and the draw of a case from its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.planted_faults.cases import (
    BATCHES,
    EQUAL,
    SHORT,
    Case,
    Draft,
    Function,
    Unfit,
    call,
    noise,
    semantics,
)
from benchmarks.planted_faults.catalogue import CAST_FIRST, FUNCTIONS, OPS, RENORMALISING, numbers
from benchmarks.planted_faults.conditions import Scene

Plant = Callable[[Draft], None]


def rare_expert(draft: Draft) -> None:
    """What one expert returns is multiplied; it is the one with the fewest tokens."""
    name = draft.rng.choice([name for name, _ in draft.nodes("experts")])
    rare = draft.scene.rarest(name.replace("experts", "router"))
    by = numbers(draft.rng)["?scale"]
    region = (name, name.replace("experts", "combine"))
    if draft.rng.random() < 0.5:
        draft.functions.append(Function((name,), call("experts", {"rare": rare, "rare_by": by})))
    else:
        draft.functions.append(Function(region, call("mixer", {"experts": {"rare": rare, "rare_by": by}})))


def one_token(draft: Draft) -> None:
    """One real token of one sequence."""
    draft.conditional(lambda name: draft.scene.one_token(name, draft.rng))


def one_sequence(draft: Draft) -> None:
    """All tokens of one sequence."""
    draft.conditional(lambda name: draft.scene.one_sequence(name, draft.rng))


def one_batch(draft: Draft) -> None:
    """The last micro-batch, which is smaller."""
    where = f"partial(spoilt.smaller, size={draft.scene.micro_batch})"
    draft.conditional(lambda _: where)


def token_ids(draft: Draft) -> None:
    """Token ids from a number on, of which there are few."""
    highest = sorted(set(draft.scene.tokens.flatten().tolist()), reverse=True)
    where = f"partial(spoilt.ids_from, number={highest[draft.rng.randrange(1, 6)]})"
    faulty = call("embed", {"by": numbers(draft.rng)["?scale"]})
    text = f"partial(spoilt.only, where={where}, clean=plain.embed, faulty={faulty})"
    draft.functions.append(Function(("embed",), text))


def padding_only(draft: Draft) -> None:
    """Padded tokens, by their id or by the mask."""
    attends = draft.nodes("attention") if "attention" in OPS[draft.model] else []
    if attends and draft.rng.random() < 0.5:
        name, op = draft.rng.choice(attends)
        where, faulty = "spoilt.padded", {"by": numbers(draft.rng)["?scale"]}
    else:
        name, op = "embed", "embedding"
        where, faulty = "partial(spoilt.ids_equal, number=0)", {"by": numbers(draft.rng)["?scale"]}
    function = FUNCTIONS[op]
    text = f"partial(spoilt.only, where={where}, clean=plain.{function}, faulty={call(function, faulty)})"
    draft.functions.append(Function((name,), text))


def not_finite(draft: Draft) -> None:
    """NaN or an infinity in one channel of one token, or in one row of the rarest expert."""
    value = draft.rng.choice(("nan", "inf", "-inf"))
    if draft.rng.random() < 0.4:
        name = draft.rng.choice([name for name, _ in draft.nodes("experts")])
        rare = draft.scene.rarest(name.replace("experts", "router"))
        text = f"partial(plain.experts, rare={rare}, rare_is=float({value!r}))"
    else:
        name, op = draft.rng.choice(draft.nodes("rms_norm", "linear", "add", "combine"))
        where = draft.scene.one_token(name, draft.rng)
        if where is None or op not in OPS[draft.model]:
            raise Unfit(f"no token is set apart at {name}")
        of = call(FUNCTIONS[op], {})
        channel = draft.rng.randrange(4)
        text = f"partial(spoilt.poisoned, of={of}, where={where}, channel={channel}, value=float({value!r}))"
    draft.functions.append(Function((name,), text))


def cancelling(draft: Draft) -> None:
    """One GEMM multiplied and a later one divided by the same: by a power of two, or with roundings left."""
    names = {name for name, _ in draft.nodes("linear")}
    ends = (("v_proj", "o_proj"), ("up_proj", "down_proj"), ("shared_up_proj", "shared_down_proj"))
    pairs = [(name, name.removesuffix(a) + b) for name in sorted(names) for a, b in ends if name.endswith(f".{a}")]
    first, second = draft.rng.choice([pair for pair in pairs if pair[1] in names])
    by = draft.rng.choice((2.0, 4.0, 3.0, 1.4))
    draft.functions += [
        Function((name,), call("linear", {"by": factor})) for name, factor in ((first, by), (second, 1 / by))
    ]
    draft.offset = (first, second)


def not_deterministic(draft: Draft) -> None:
    """A function that gives other bits whenever it is called."""
    op = draft.rng.choice([op for op in ("rms_norm", "linear", "add", "combine") if op in OPS[draft.model]])
    name = draft.rng.choice(draft.nodes(op))[0]
    of = call(FUNCTIONS[op], {})
    draft.functions.append(Function((name,), f"partial(spoilt.unsteady, of={of}, by={numbers(draft.rng)['?scale']})"))
    draft.unsteady = name


def two(draft: Draft) -> None:
    """A fault in one sequence, and another number everywhere at another node."""
    one_sequence(draft)
    draft.plant("number")


def elsewhere(draft: Draft) -> None:
    """A norm with a known rounding in the last micro-batch and another fault in all others, behind a fault in those.

    On equal inputs, which only the last micro-batch has, a known choice gives all of its bits; of the function as a
    whole no choice does.
    """
    size = draft.scene.micro_batch
    norms = [name for name, _ in draft.nodes("rms_norm")]
    early, late = sorted(draft.rng.sample(range(len(norms)), 2))
    whole = f"partial(spoilt.whole, size={size})"
    by = call("norm", {"by": numbers(draft.rng)["?scale"]})
    norm = call("norm", draft.rng.choice(({"square": "bfloat16"}, {"offset": 1.0}, {"eps": 1e-5})))
    for place, otherwise in ((early, "plain.norm"), (late, norm)):
        text = f"partial(spoilt.only, where={whole}, clean={otherwise}, faulty={by})"
        draft.functions.append(Function((norms[place],), text))


def hidden(draft: Draft) -> None:
    """A wrong eps that rests where another choice is set on the same router, and an unhidden one in other layers."""
    routers = [name for name, _ in draft.nodes("router")]
    resting = draft.rng.sample(routers, draft.rng.randrange(1, len(routers) + 1))
    drawn = numbers(draft.rng)["?eps"]
    draft.semantic |= {f"{name}:renormalize_eps": drawn for name in routers}
    draft.legal |= {f"{name}:timing": "after_topk" for name in resting}


def clean(draft: Draft) -> None:
    """Functions that compute what their nodes do."""
    op = draft.rng.choice([op for op in OPS[draft.model] if op not in {"embedding", "rotary"}])
    draft.functions += [Function((name,), call(FUNCTIONS[op], {}), faulty=False) for name, _ in draft.nodes(op)]


ATTENTION = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe")
SPARSE = (*ATTENTION, "deepseek_v3")
ALL = (*SPARSE, "gpt_oss")

KINDS: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "a number": (lambda draft: draft.plant("number"), ALL),
    "a rounding": (lambda draft: draft.plant("rounding"), SPARSE),
    "three together": (lambda draft: draft.plant("three"), SPARSE),
    "no word for it": (lambda draft: draft.plant("unknown"), ALL),
    "a region, known": (lambda draft: draft.region(("number", "rounding", "three")), SPARSE),
    "a region, no word": (lambda draft: draft.region(("unknown",)), SPARSE),
    "a rare expert": (rare_expert, SPARSE),
    "one token": (one_token, ALL),
    "one sequence": (one_sequence, ALL),
    "one micro-batch": (one_batch, ALL),
    "token ids": (token_ids, ALL),
    "padding only": (padding_only, ATTENTION),
    "not finite": (not_finite, SPARSE),
    "cancelling": (cancelling, ATTENTION),
    "not deterministic": (not_deterministic, ALL),
    "two at once": (two, SPARSE),
    "otherwise elsewhere": (elsewhere, CAST_FIRST),
    "one hides the other": (hidden, RENORMALISING),
    "settings": (semantics, (*RENORMALISING, "olmoe", "glm4_moe", "gpt_oss")),
    "clean": (clean, ALL),
}
"""By name: what plants, and on which models. Every kind comes up in turn."""

UNPADDED = frozenset({"one sequence", "two at once"})
"""Kinds that tell sequences by their first token."""
QUIET = frozenset({"not deterministic"})
"""Kinds without noise upstream of anything: what is drawn anew would not be where it was."""
ALONE = frozenset({"one micro-batch", "otherwise elsewhere"})
"""Kinds whose sides have the same micro-batches, the last one smaller."""


def kind_of(seed: int) -> str:
    """The kind of the case of a seed."""
    return [*KINDS][seed % len(KINDS)]


def shape(seed: int, attempt: int) -> tuple[random.Random, str, tuple[int, int, int], int, str]:
    """Where a case's draw starts: its random numbers, model, batches, tokens per sequence and padding."""
    kind = kind_of(seed)
    rng = random.Random(f"fault {seed} {attempt}")  # noqa: S311 - a reproducible draw
    model = rng.choice(KINDS[kind][1])
    batches = rng.choice(SHORT if kind in ALONE else BATCHES if rng.random() < 0.6 else EQUAL)
    sides = ("left", "right") if kind == "padding only" else ("", "", "left", "right")
    padding = "" if kind in UNPADDED else rng.choice(sides)
    return rng, model, batches, rng.randrange(6, 13), padding


def tokens(seed: int, sequences: int, length: int, vocabulary: int, padding: str) -> Mapping[str, Tensor]:
    """Random ids from 1 on, and 0 where a sequence is padded; at least three of its tokens are real."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocabulary, (sequences, length), generator=generator)
    real = torch.randint(3, length + 1, (sequences, 1), generator=generator)
    real[0] = length - 2 if padding else length
    mask = torch.arange(length) < real if padding else torch.ones_like(ids, dtype=torch.bool)
    mask = mask.flip(1) if padding == "left" else mask
    return {"input_ids": ids * mask, "attention_mask": mask}


def draw(seed: int, attempt: int, scene_of: Callable[..., Scene]) -> Case:
    """The case of a seed. Raises Unfit where this attempt plants nothing."""
    rng, model, (sequences, ours, theirs), length, padding = shape(seed, attempt)
    kind = kind_of(seed)
    draft = Draft(rng, scene_of(seed, model, sequences, length, ours, padding))
    try:
        KINDS[kind][0](draft)
    except IndexError:
        raise Unfit(f"nothing of {model} is fit for {kind}") from None
    benign = draft.legal | ({} if kind in QUIET else noise(draft))
    if kind == "settings" and len(benign) < 2:
        raise Unfit("too little beside it")
    return Case(
        seed=seed,
        kind=kind,
        model=model,
        sequences=sequences,
        length=length,
        batches=(ours, theirs),
        padding=padding,
        functions=tuple(draft.functions),
        benign=benign,
        semantic=draft.semantic,
        offset=draft.offset,
        unsteady=draft.unsteady,
        poisoned=kind == "not finite",
        padded=kind == "padding only",
    )
