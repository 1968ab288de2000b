"""Every row of docs/combine.md, set in a model and run, against a loop over tokens, slots and numbers, bit for bit.

The rows of the experts and the routes are taken as the model computed them: those are tested elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_random
from tests.ops.combine_variants import VARIANTS, Variant
from tests.ops.scalar import F32, bf16, fma, in_turn
from tests.planted.places import random_tokens
from tests.small_models import SMALL

TOP_K, EXPERTS, SCALE = 6, 16, 2.5
FIELDS: dict[bool, dict[str, Any]] = {
    False: {**SMALL["qwen3_moe"], "hidden_size": 40, "num_hidden_layers": 1, "num_experts_per_tok": TOP_K},
    True: {
        **SMALL["deepseek_v3"],
        "hidden_size": 40,
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "num_experts_per_tok": TOP_K,
        "routed_scaling_factor": SCALE,
    },
}
BLOCK = "layers[0].moe."


class Token:
    """One number of one token: its rows by slot, their experts and weights, and the shared expert's."""

    def __init__(self, rows: Sequence[F32], ids: Sequence[int], weights: Sequence[F32], shared: F32) -> None:
        self.rows, self.ids, self.weights, self.shared = rows, ids, weights, shared
        self.slots = range(len(rows))
        self.by_expert = sorted(self.slots, key=lambda k: ids[k])

    def weighted(self, store: Callable[[F32], F32]) -> list[F32]:
        """Products by slot; a product of two bf16 numbers is exact in fp32, so that storing it is its only rounding."""
        return [store(row * weight) for row, weight in zip(self.rows, self.weights, strict=True)]

    def fused(self, start: F32) -> F32:
        for row, weight in zip(self.rows, self.weights, strict=True):
            start = fma(weight, row, start)
        return start

    def ranks(self, count: int) -> list[list[int]]:
        """The slots of each rank."""
        return [[k for k in self.slots if self.ids[k] * count // EXPERTS == rank] for rank in range(count)]

    def sums(self, count: int) -> list[F32]:
        """What each rank adds up of weighted rows, rounded to bf16; 0 where it has none."""
        return [bf16(in_turn([F32(0), *(self.rows[k] for k in slots)])) for slots in self.ranks(count)]


def unrounded(x: F32) -> F32:
    return x


def in_bf16(terms: Sequence[F32]) -> F32:
    total = F32(0)
    for term in terms:
        total = bf16(total + term)
    return total


def from_zero(terms: Sequence[F32]) -> F32:
    return in_turn([F32(0), *terms])


def four_lanes(terms: Sequence[F32]) -> F32:
    return in_turn([from_zero(terms[lane::4]) for lane in range(4)])


def of(token: Token, values: Sequence[F32], order: Sequence[int]) -> list[F32]:
    return [values[k] for k in order]


def arrival(n: int) -> list[int]:
    """The permutation that `unordered(0)` stands for."""
    order = list(range(n))
    random.Random(0).shuffle(order)  # noqa: S311
    return order


def two_levels(t: Token) -> F32:
    sums = t.sums(16)
    return bf16(in_turn([bf16(from_zero(sums[:8])), bf16(from_zero(sums[8:]))]))


def by_first_slot(t: Token) -> F32:
    met = list(dict.fromkeys(t.ids[k] * 8 // EXPERTS for k in t.slots))
    sums = t.sums(8)
    return bf16(from_zero([sums[rank] for rank in met]))


def rank_by_rank(t: Token) -> F32:
    slots_of_ranks = [[k for k in t.by_expert if k in slots] for slots in t.ranks(4)]
    return bf16(in_turn([from_zero([t.rows[k] for k in slots]) for slots in slots_of_ranks]))


def scaled_shared(t: Token) -> F32:
    return bf16(t.shared + bf16(from_zero(t.rows)) * F32(SCALE))


def with_shared(t: Token, routed: F32) -> F32:
    return bf16(routed + t.shared)


S = F32(SCALE)
BY_HAND: dict[str, Callable[[Token], F32]] = {
    "C1": lambda t: in_bf16(of(t, t.weighted(bf16), t.by_expert)),
    "C2": lambda t: bf16(from_zero(of(t, t.weighted(unrounded), t.by_expert))),
    "C3": lambda t: bf16(from_zero(t.rows)),
    "C3s": lambda t: with_shared(t, bf16(from_zero(t.rows) * S)),
    "C3o": lambda t: with_shared(t, bf16(bf16(from_zero(t.rows)) * S)),
    "C4": lambda t: bf16(four_lanes(t.weighted(bf16))),
    "C5": lambda t: bf16(four_lanes(t.weighted(unrounded))),
    "C6": lambda t: bf16(t.fused(F32(0))),
    "C7": lambda t: bf16(t.fused(F32(0))),
    "C8": lambda t: in_bf16(of(t, t.rows, arrival(TOP_K))),
    "C9": lambda t: bf16(from_zero(of(t, t.rows, t.by_expert[::-1]))),
    "C10": lambda t: in_bf16(of(t, t.rows, arrival(TOP_K))),
    "C10d": lambda t: in_bf16(of(t, t.rows, t.by_expert)),
    "C11": lambda t: bf16(from_zero(t.sums(8))),
    "C12": two_levels,
    "C13": lambda t: bf16(t.fused(F32(0))),
    "C14": by_first_slot,
    "C15": lambda t: bf16(t.fused(F32(0))),
    "C16": lambda t: in_bf16(of(t, t.weighted(bf16), t.by_expert)),
    "C17": rank_by_rank,
    "C18": lambda t: bf16(from_zero(of(t, t.weighted(bf16), t.by_expert))),
    "S1": lambda t: with_shared(t, bf16(from_zero(t.rows))),
    "S2": lambda t: bf16(t.fused(F32(0)) + t.shared),
    "S3": lambda t: bf16(t.fused(t.shared)),
    "S4": lambda t: bf16(from_zero([*t.weighted(unrounded), t.shared])),
    "S5": lambda t: bf16(from_zero([*t.weighted(unrounded), t.shared * (F32(1) / S)]) * S),
    "S6": scaled_shared,
    "F1": lambda t: in_bf16(of(t, t.weighted(bf16), t.by_expert)),
    "F2": lambda t: bf16(from_zero(t.weighted(unrounded))),
    "F3": lambda t: in_bf16(of(t, t.weighted(bf16), t.by_expert)),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Model]:
    folder = tmp_path_factory.mktemp("combine")
    opened_models = {shared: make_random(fields, folder / str(shared)) for shared, fields in FIELDS.items()}
    return {shared: open_model(path, device="cpu", residency="resident") for shared, path in opened_models.items()}


def computed(model: Model, variant: Variant) -> dict[str, torch.Tensor]:
    """Values of the MoE block by node, under the variant's settings and no others."""
    node_of = {"all_reduce": "combine_reduce" if variant.shared else "reduce"}
    settings = {}
    for name, value in variant.sets.items():
        op, _, attribute = name.partition(":")
        settings[f"{BLOCK}{node_of.get(op, op)}:{attribute}"] = value
    saved = ["router", "experts", *(["shared_reduce", "shared_add"] if variant.shared else ["reduce"])]
    ids = random_tokens(2, 5)
    placement = {"expert": variant.ranks} if variant.ranks > 1 else None
    values = forward(model, ids, settings=settings, placement=placement, save=[BLOCK + name for name in saved])
    return {key.removeprefix("layers.0.moe."): tensor for key, tensor in values.items()}


def by_hand(variant: Variant, values: dict[str, torch.Tensor]) -> torch.Tensor:
    rows = values["experts"].flatten(0, 1)
    shared = values["shared_reduce"].flatten(0, 1) if variant.shared else torch.zeros_like(rows[:, 0])
    ids, weights = (values[f"router.{port}"].reshape(-1, TOP_K) for port in ("ids", "weights"))
    assert rows.dtype == shared.dtype == torch.bfloat16
    columns_out = []
    for n in range(len(rows)):
        token_weights = [F32(w) for w in weights[n].float().numpy()]
        columns, extra = rows[n].float().numpy(), shared[n].float().numpy()
        for h in range(rows.shape[-1]):
            token = Token([F32(x) for x in columns[:, h]], ids[n].tolist(), token_weights, F32(extra[h]))
            columns_out.append(BY_HAND[variant.id](token))
    return torch.tensor(np.array(columns_out)).to(torch.bfloat16)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.id)
def test_variant(models: dict[bool, Model], variant: Variant) -> None:
    values = computed(models[variant.shared], variant)
    ours = values["shared_add" if variant.shared else "reduce"]
    assert same_bits(ours.flatten(), by_hand(variant, values))


DIFFERENT = (("C1", "C4"), ("F1", "F3"), ("F1", "F2"), ("C6", "C7"), ("C4", "C5"), ("C10", "C10d"), ("S1", "S2"))


@pytest.mark.parametrize("pair", DIFFERENT, ids="-".join)
def test_variants_that_differ_here_too(models: dict[bool, Model], pair: tuple[str, str]) -> None:
    chosen = [v for v in VARIANTS if v.id in pair]
    first, two = (computed(models[v.shared], v)["shared_add" if v.shared else "reduce"] for v in chosen)
    assert not same_bits(first, two)


def test_every_variant_of_the_page_is_evaluated() -> None:
    assert [v.id for v in VARIANTS] == list(BY_HAND)
