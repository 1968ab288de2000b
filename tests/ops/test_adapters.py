"""Kernels with an adapter beside their weights, against the same sums written out.

All operands are small whole numbers and quarters, so that no fp32 sum rounds, whatever its order; what is left are the
roundings of the sites, in three dtypes whose numbers differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.ops.adapter import FOLDED, IN_B, LAST, MERGED, UNMERGED, scaling
from moeparity.ops.experts import EXPERTS
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.linear import linear
from moeparity.ops.linear import LINEAR

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SITES = ("inputs", "inner", "product", "scaled", "sum")
ADAPTER = {"alpha": 5.0, "rslora": False, "times": 1, "in_weight": False}
RANK, FACTOR = 4, 5.0 / 4
Settings = Mapping[str, Any]


def whole(*shape: int, seed: int, quarter: bool = False, most: int = 9) -> Tensor:
    numbers = torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()
    return numbers / 4 if quarter else numbers


def choices(count: int) -> list[dict[str, torch.dtype]]:
    """Dtypes for all sites: seeded draws of the 243 ways."""
    every = list(itertools.product(DTYPES, repeat=len(SITES)))
    places = torch.randperm(len(every), generator=torch.Generator().manual_seed(1))[:count].tolist()
    return [dict(zip(SITES, every[place], strict=True)) for place in places]


def settings(op: Any, of: Mapping[str, torch.dtype], **further: Any) -> dict[str, Any]:
    defaults = {a.name: a.default for a in op.attributes}
    at = op.settings({name: "fp32" if value == "model" else value for name, value in defaults.items()})
    return {**at, **{f"adapter_{site}": dtype for site, dtype in of.items()}, **further}


def delta(a: Tensor, b: Tensor, of: Mapping[str, torch.dtype]) -> Tensor:
    product = (b.to(of["inputs"]).double() @ a.to(of["inputs"]).double()).float().to(of["product"])
    return (product.float() * FACTOR).to(of["scaled"])


def beside(x: Tensor, a: Tensor, b: Tensor, of: Mapping[str, torch.dtype], where: str) -> Tensor:
    a, b, x = (part.to(of["inputs"]) for part in (a, b, x))
    inner = (x.double() @ a.double().T).float().to(of["inner"]).to(of["inputs"])
    if where == IN_B:
        b = (b.float() * FACTOR).to(of["scaled"]).to(of["inputs"])
    product = (inner.double() @ b.double().T).float().to(of["product"])
    return product if where == IN_B else (product.float() * FACTOR).to(of["scaled"])


def added(x: Tensor, y: Tensor, of: Mapping[str, torch.dtype]) -> Tensor:
    return (x.float() + y.float()).to(of["sum"])


X, W = whole(2, 3, 16, seed=1), whole(12, 16, seed=2, quarter=True)
A, B = whole(RANK, 16, seed=3), whole(12, RANK, seed=4, quarter=True)


def adapted(at: Settings, **adapter: Any) -> Tensor:
    weights = {"weight": W, "weight_a": A, "weight_b": B}
    return linear(X, w=weights, p={"heads": None, "parallel": "row", "adapter": {**ADAPTER, **adapter}}, at=at)


@pytest.mark.parametrize("where", [LAST, IN_B])
@pytest.mark.parametrize("of", choices(12), ids=str)
def test_linear_beside_its_weight(of: dict[str, torch.dtype], where: str) -> None:
    ours = adapted(settings(LINEAR, of, adapter=UNMERGED, adapter_scaling=where))
    assert same_bits(ours, added(X @ W.T, beside(X, A, B, of, where), of))


@pytest.mark.parametrize("of", choices(12), ids=str)
def test_linear_with_a_merged_weight(of: dict[str, torch.dtype]) -> None:
    ours = adapted(settings(LINEAR, of, adapter=MERGED))
    weight = added(W, delta(A, B, of), of)
    assert same_bits(ours, (X.double() @ weight.double().T).float())


def test_a_weight_that_holds_the_adapter_already() -> None:
    of = dict.fromkeys(SITES, torch.float32)
    at = settings(LINEAR, of, adapter=UNMERGED)
    twice, once = adapted(at, in_weight=True), adapted(at)
    assert same_bits(twice - once, once - X @ W.T)
    assert not same_bits(twice, once)


@pytest.mark.parametrize("of", choices(4), ids=str)
def test_ranks_hold_the_part_of_a_or_b_that_goes_with_their_weight(of: dict[str, torch.dtype]) -> None:
    row = adapted(settings(LINEAR, of, adapter=UNMERGED, tensor=2, parallel="row", partial=torch.float32))
    assert row.shape == (2, 2, 3, 12)
    for rank, part in enumerate(row.unbind(1)):
        columns = slice(8 * rank, 8 * rank + 8)
        expected = added(X[..., columns] @ W[:, columns].T, beside(X[..., columns], A[:, columns], B, of, LAST), of)
        assert same_bits(part.contiguous(), expected)
    column = adapted(settings(LINEAR, of, adapter=UNMERGED, tensor=2, parallel="column"))
    assert same_bits(column, added(X @ W.T, beside(X, A, B, of, LAST), of))


E, H, WIDTH = 3, 8, 4
IDS = torch.tensor([[[0, 2], [2, 1], [0, 1]]])
# Squares of their sums have few bits too.
TOKENS = whole(1, 3, H, seed=5, most=1)
GATE_UP, DOWN = whole(E, WIDTH, H, seed=6, most=1), whole(E, H, WIDTH, seed=7, most=1)
OF_EXPERTS = {
    "gate_up_a": whole(E * RANK, H, seed=8, most=1), "gate_up_b": whole(WIDTH, RANK * E, seed=9, most=1),
    "down_a": whole(E * RANK, WIDTH, seed=10, most=1), "down_b": whole(H, RANK * E, seed=11, most=1),
}  # fmt: skip


def of_expert(name: str, expert: int) -> tuple[Tensor, Tensor]:
    """A of consecutive rows; B of every third column, as peft 0.21.2 lays experts out."""
    a, b = OF_EXPERTS[f"{name}_a"], OF_EXPERTS[f"{name}_b"]
    return a[expert * RANK : (expert + 1) * RANK], b[:, expert::E]


def by_hand(of: dict[str, torch.dtype], form: str) -> Tensor:
    """relu(up)^2 experts, whose activation rounds nowhere in fp32."""
    rows = torch.empty(1, 3, 2, H, dtype=torch.float32)
    for token, slot in itertools.product(range(3), range(2)):
        expert, x = int(IDS[0, token, slot]), TOKENS[0, token : token + 1]
        for name, weight in (("gate_up", GATE_UP[expert]), ("down", DOWN[expert])):
            a, b = of_expert(name, expert)
            if form == UNMERGED:
                x = added((x.double() @ weight.double().T).float(), beside(x, a, b, of, LAST), of)
            else:
                x = (x.double() @ added(weight, delta(a, b, of), of).double().T).float()
            x = torch.relu(x.float()) ** 2 if name == "gate_up" else x
        rows[0, token, slot] = x
    return rows


@pytest.mark.parametrize("form", [UNMERGED, MERGED])
@pytest.mark.parametrize("of", choices(8), ids=str)
def test_experts(of: dict[str, torch.dtype], form: str) -> None:
    at = settings(EXPERTS, of, adapter=form)
    weights = {"gate_up": GATE_UP, "down": DOWN, **OF_EXPERTS}
    ours = experts(TOKENS, IDS, None, w=weights, p={"glu": "relu2", "adapter": ADAPTER}, at=at)
    assert same_bits(ours, by_hand(of, form).to(of["sum"] if form == UNMERGED else torch.float32))


def test_a_folded_stack_is_a_merged_one_where_nothing_rounds() -> None:
    at, weights = (
        settings(EXPERTS, dict.fromkeys(SITES, torch.float32)),
        {"gate_up": GATE_UP, "down": DOWN, **OF_EXPERTS},
    )
    p = {"glu": "relu2", "adapter": ADAPTER}
    folded, merged = (
        experts(TOKENS, IDS, None, w=weights, p=p, at={**at, "adapter": form}) for form in (FOLDED, MERGED)
    )
    assert same_bits(folded, merged)
    without = experts(TOKENS, IDS, None, w={"gate_up": GATE_UP, "down": DOWN}, p={"glu": "relu2"}, at=at)
    assert not same_bits(folded, without)


def test_the_scaling_is_that_of_peft() -> None:
    assert scaling({**ADAPTER, "alpha": 7.0}, 2) == 3.5
    assert scaling({**ADAPTER, "alpha": 6.0, "rslora": True}, 9) == 2.0
    assert scaling({**ADAPTER, "alpha": 6.0, "rslora": True, "times": 8}, 9) == 16.0
