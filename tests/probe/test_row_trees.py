"""RMSNorm through its eps and softmax through its shares."""

from __future__ import annotations

import pytest
import torch

from moeparity.errors import MoeparityError
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from moeparity.probe.calls import Setup
from moeparity.probe.find import Tree, probe
from moeparity.probe.target import KINDS, Function
from tests.probe import kernels


def tree_of(call: object, kind: str, n: int, dtype: str = "fp32", m: int = 16) -> Tree:
    assert callable(call)
    setup = Setup(n=n, dtype=torch_dtype(dtype), m=m, width=1)
    (tree_,) = probe(Function("f", call, KINDS[kind]), [setup]).trees.values()
    return tree_


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("call", "normalized"), [(kernels.rms_norm, "fp32"), (kernels.hf_rms_norm, "model")], ids=["torch", "hf"]
)
def test_rms_norms_of_torch_replay_whole_rows(call: object, normalized: str, dtype: str) -> None:
    tree_ = tree_of(call, "rms_norm", 400, dtype)
    assert str(tree_.order) == "cascade"
    assert tree_.equal == tree_.replayed == 256
    assert dict(tree_.sites)["normalized"] == normalized or dtype == "fp32"


@pytest.mark.parametrize("order", ["lanes(32) | fold_hi", "threads(16, vector=4) | fold_hi", "reverse", "unordered(3)"])
def test_planted_orders_of_squares(order: str) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        total = sum_axis(x.float().square(), parse(order), -1, accumulate=torch.float32, executor="eager")
        return (x.float() * torch.rsqrt(total / x.shape[-1] + eps).unsqueeze(-1) * weight.float()).to(x.dtype)

    tree_ = tree_of(norm, "rms_norm", 80, "bf16", m=64)
    assert tree_.equal == tree_.replayed == 256
    assert tree_.order is not None
    assert str(tree_.order) == order or "unordered" in order


def test_planted_orders_of_exponentials() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(-1, keepdim=True)).exp()
        total = sum_axis(powers, parse("lanes(16) | fold_lo"), -1, accumulate=torch.float32, executor="eager")
        return powers / total.unsqueeze(-1)

    tree_ = tree_of(softmax, "softmax", 300)
    assert (str(tree_.order), tree_.replayed) == ("lanes(16) | fold_lo", 0)


def test_the_softmax_of_torch_has_a_tree() -> None:
    tree_ = tree_of(kernels.softmax, "softmax", 256)
    assert tree_.order is not None
    assert tree_.accumulate == "fp32"


def test_a_softmax_in_16_bits_is_refused() -> None:
    with pytest.raises(MoeparityError, match="one unit of the sum does not show"):
        tree_of(kernels.softmax, "softmax", 64, "bf16")


def test_a_norm_that_does_not_use_its_eps_has_no_tree_to_show() -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return kernels.rms_norm(x, weight, 1e-6)

    setup = Setup(n=64, dtype=torch.float32, m=4, width=1)
    result = probe(Function("f", norm, KINDS["rms_norm"]), [setup])
    assert result.trees == {}
    assert "is eps used as it is given" in result.places[0][2]
