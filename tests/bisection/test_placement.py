"""Whole models on simulated ranks: what no order can change, and what no degree can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives.registry import COLLECTIVES

DEGREES = (1, 2, 4)
ANY_SIZE = sorted(
    name for name, c in COLLECTIVES.items() if not c.scatters and (not c.worlds or 2 in c.worlds) and "bf16" in c.dtypes
)


@pytest.fixture(scope="module")
def model(qwen3_moe: Path) -> Model:
    return open_model(qwen3_moe, device="cpu", residency="resident")


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, 512, (2, 9), generator=torch.Generator().manual_seed(5))


def logits(
    model: Model, ids: torch.Tensor, tensor: int, profile: str = "hf-eager", **settings: str | int
) -> torch.Tensor:
    by_address = {address.replace("__", ":"): value for address, value in settings.items()}
    return forward(model, ids, profile=profile, placement={"tensor": tensor}, settings=by_address)["logits"]


def test_two_ranks_agree_under_every_collective(model: Model, ids: torch.Tensor) -> None:
    """One addition and one rounding: nothing is left to choose."""
    by_order = {name: logits(model, ids, 2, **{"**.reduce__collective": name}) for name in ANY_SIZE}
    orders = ("sequential", "reverse", "fold_hi", "fold_lo")
    settings = {"**.reduce__collective": "none", "**.reduce__accumulate": "fp32"}
    by_order |= {order: logits(model, ids, 2, **settings, **{"**.reduce__order": order}) for order in orders}
    assert len(by_order) > 20
    first = by_order["gloo.all_reduce"]
    assert [name for name, each in by_order.items() if not same_bits(each, first)] == []


def test_four_ranks_do_not(model: Model, ids: torch.Tensor) -> None:
    names = ("nccl.ring", "nccl.tree", "flashinfer.one_shot", "flashinfer.one_shot_fp32")
    by_order = [logits(model, ids, 4, **{"**.reduce__collective": name}) for name in names]
    assert not any(same_bits(first, second) for i, first in enumerate(by_order) for second in by_order[:i])


def test_fixed_blocks_give_the_same_bits_on_any_number_of_ranks(model: Model, ids: torch.Tensor) -> None:
    # Four heads of queries are four blocks at most.
    four = {f"**.{node}__blocks": 4 for node in ("attend", "q_proj", "o_proj", "k_proj", "v_proj", "experts")}
    first, *others = (logits(model, ids, n, "tp-invariant", lm_head__blocks=4, **four) for n in DEGREES)
    assert all(same_bits(first, logits_there) for logits_there in others)
    assert not same_bits(first, logits(model, ids, 1))


def test_cutting_rows_changes_bits_with_the_degree(model: Model, ids: torch.Tensor) -> None:
    by_degree = [logits(model, ids, n) for n in DEGREES]
    assert not any(same_bits(first, second) for i, first in enumerate(by_degree) for second in by_degree[:i])
