"""Where a difference begins, its calls are run again: rounding order explains what it can, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.diff.report import LegalOrders
from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import EXPERTS, model, record

ROWS, WIDTH = 16, 96
_RANDOM = torch.Generator().manual_seed(11)
X = torch.randn(ROWS, WIDTH, generator=_RANDOM) * 3
GAIN, WEIGHTS = torch.rand(WIDTH, generator=_RANDOM) + 0.5, torch.randn(4, WIDTH, 24, generator=_RANDOM)
HEADS = torch.randn(3, 1, 2, ROWS, 32, generator=_RANDOM)
PLACES = torch.randint(0, 3, (ROWS,), generator=_RANDOM)
ENDS = torch.tensor([5, 5, 12, 16], dtype=torch.int32)

Function = Callable[[Tensor], Any]


class _One(nn.Module):
    """A program of one function of constants, so that nothing else differs."""

    def __init__(self, function: Function, x: Tensor) -> None:
        super().__init__()
        self.function, self.x = function, x

    def forward(self, input_ids: Tensor) -> Any:  # noqa: ARG002  the scene's keyword
        with torch.inference_mode():
            return self.function(self.x)


def _attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True)


def _index_add(x: Tensor) -> Tensor:
    return torch.zeros(3, WIDTH, dtype=x.dtype).index_add(0, PLACES, x)


def _scatter_add(x: Tensor) -> Tensor:
    return torch.zeros(3, WIDTH, dtype=x.dtype).scatter_add(0, PLACES[:, None].expand_as(x), x)


def _grouped(x: Tensor) -> Tensor:
    weights, starts = WEIGHTS.to(x.dtype), [0, *ENDS.tolist()]
    if x.dtype == torch.float32:
        return torch._grouped_mm(x, weights, offs=ENDS)
    return torch.cat([x[i:j] @ w for i, j, w in zip(starts, starts[1:], weights, strict=False)])


OPS: dict[str, tuple[Function, Tensor]] = {
    "softmax": (lambda x: torch.softmax(x, -1), X),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), X),
    "logsumexp": (lambda x: torch.logsumexp(x, -1, keepdim=True), X),
    "layer_norm": (lambda x: F.layer_norm(x, (WIDTH,), GAIN.to(x.dtype), GAIN.to(x.dtype)), X),
    "rms_norm": (lambda x: F.rms_norm(x, (WIDTH,), GAIN.to(x.dtype), 1e-6), X),
    "scaled_dot_product_attention": (_attention, HEADS),
    "index_add": (_index_add, X),
    "scatter_add": (_scatter_add, X),
    "_grouped_mm": (_grouped, X),
    "sum": (lambda x: x.sum((0, 1), keepdim=True), X[:2]),
    "mean": (lambda x: x.mean(), X[:2]),
    "bmm": (lambda x: torch.bmm(x, x.mT), HEADS[0, 0]),
    "silu": (F.silu, X),
    "exp": (torch.exp, X),
}


@pytest.mark.parametrize("name", OPS)
def test_what_another_order_gives_is_inside_and_what_a_coarser_dtype_gives_is_not(tmp_path: Path, name: str) -> None:
    function, x = OPS[name]
    a = record(tmp_path / "a", _One(function, x))

    def orders(instead: Any) -> LegalOrders:
        """Of a program B that gives something else at that op."""

        def change(op: str, args: Any, out: Any) -> Any:
            return instead if op.split(".")[1] == name else out

        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        start = diff(a, record(folder, _One(function, x), change=change)).starts[0]
        assert all(name in op for op in start.ops_a)
        return start.orders

    with torch.no_grad():
        inside = orders(function(x.double()).float())
        outside = orders(function(x.bfloat16().double()).float())
    assert (inside.verdict, outside.verdict) == ("inside", "outside")
    assert inside.sums == outside.sums == (name not in {"silu", "exp"})
    assert inside.error_a is not None
    assert inside.error_a < 1e-6
    assert (outside.error_b or 0) > 1e-4


def test_a_composed_norm_against_a_fused_one_is_told_by_their_orders(tmp_path: Path) -> None:
    def composed(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * GAIN

    fused = OPS["rms_norm"][0]
    a = record(tmp_path / "a", _One(composed, X))

    def once(op: str, args: Any, out: Any) -> Any:
        return fused(X.double()).float() if "rms_norm" in op else out

    report = diff(a, record(tmp_path / "b", _One(fused, X), change=once))
    assert report.starts[0].ops_b == ("aten.rms_norm.default",)
    assert len(report.starts[0].ops_a) == 6
    assert report.starts[0].orders.verdict == "inside"
    stale = diff(a, record(tmp_path / "c", _One(lambda x: F.rms_norm(x, (WIDTH,), GAIN, 1e-2), X)))
    assert stale.starts[0].orders.verdict == "outside"


def test_experts_in_another_order_are_inside(tmp_path: Path) -> None:
    """The loop adds each expert's rows to the output in bf16: the order of experts is one of its orders."""

    def program(experts: list[int]) -> Any:
        def forward(self: Any, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for expert in experts:
                token, slot = (ids == expert).nonzero(as_tuple=True)
                rows = F.linear(F.silu(F.linear(x[token], self.up[expert])), self.down[expert])
                out = out.index_add(0, token, rows * weights[token, slot].unsqueeze(-1))
            return out

        changed = model()
        for layer in changed.layers:
            layer.moe.experts.forward = MethodType(forward, layer.moe.experts)
            layer.moe.forward = MethodType(_of_six, layer.moe)
        return changed

    experts = list(range(EXPERTS))
    report = diff(record(tmp_path / "a", program(experts)), record(tmp_path / "b", program(experts[::-1])))
    first = report.starts[0]
    assert (first.path, first.orders.verdict) == ("layers.0.moe.experts", "inside"), first.orders.reason


def test_rows_that_are_added_at_once_round_less_than_call_by_call(tmp_path: Path) -> None:
    """In bf16 each call rounds what it leaves; torch's CPU kernel rounds the rows of one call once."""
    rows = X.bfloat16()[:12]

    def by_call(x: Tensor) -> Tensor:
        out = torch.zeros(2, WIDTH, dtype=x.dtype)
        for i in range(0, len(x), 2):
            out = out.index_add(0, torch.arange(2), x[i : i + 2])
        return out

    def at_once(x: Tensor) -> Tensor:
        return torch.zeros(2, WIDTH, dtype=x.dtype).index_add(0, torch.arange(len(x)) % 2, x)

    report = diff(record(tmp_path / "a", _One(by_call, rows)), record(tmp_path / "b", _One(at_once, rows)))
    assert report.starts[0].orders.verdict == "inside one way", report.starts[0]


def _of_six(self: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    weights, ids = F.softmax(self.gate(flat).float(), -1).topk(6)
    return self.experts(flat, ids, weights.to(x.dtype)).reshape(x.shape)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.cumsum(-1), "neither elementwise nor a sum whose orders are drawn here"),
        (lambda x: x + torch.rand_like(x) * 0, "draws random numbers"),
        (lambda x: x.addmm(x, torch.eye(WIDTH), beta=0.5), "a form of addmm whose orders are not drawn"),
    ],
)
def test_what_cannot_be_run_again_is_not_told_and_says_why(tmp_path: Path, function: Function, reason: str) -> None:
    def change(op: str, args: Any, out: Any) -> Any:
        return out + 1e-3 if any(word in op for word in ("cumsum", "aten.add", "addmm")) else out

    report = diff(record(tmp_path / "a", _One(function, X)), record(tmp_path / "b", _One(function, X), change=change))
    orders = report.starts[0].orders
    assert orders.verdict == "not told"
    assert reason in orders.reason


def test_a_value_that_its_own_calls_do_not_give_explains_nothing(tmp_path: Path) -> None:
    """A itself was computed otherwise than its ops say, as by a GEMM that adds in bf16: B is innocent."""

    def coarse(op: str, args: Any, out: Any) -> Any:
        return out.bfloat16().float() if "softmax" in op else out

    function = OPS["softmax"][0]
    report = diff(
        record(tmp_path / "a", _One(lambda x: torch.softmax(x, -1), X), change=coarse),
        record(tmp_path / "b", _One(function, X)),
    )
    assert report.starts[0].orders.verdict == "not told"
    assert report.starts[0].orders.reason.startswith("what A recorded is none of the orders of its own calls")
