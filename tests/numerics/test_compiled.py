"""The compiled executor: the bits of the eager one and of the scalar evaluation, or the eager one itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch

from moeparity.numerics import compiled, summation
from moeparity.numerics.bits import same_bits
from moeparity.numerics.collectives import gloo, nccl
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.orders import Sum, parse
from moeparity.numerics.summation import sum_axis, sum_leaves, sum_tree
from tests.numerics.collectives.data import zero_sum
from tests.numerics.scalar import BF16, FP32, same_numbers
from tests.numerics.test_summation import expected

Function = Callable[..., torch.Tensor]
N = 12


@pytest.fixture(scope="module", autouse=True)
def _no_precompiled_headers() -> Iterator[None]:
    """To compile Inductor's headers in advance takes longer than the few functions compiled here."""
    from torch._inductor import config

    with config.patch(cpp_cache_precompile_headers=False):
        yield


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    compiled.forget()
    yield
    compiled.forget()


def rows(dtype: torch.dtype, n: int = N) -> torch.Tensor:
    """Sums that cancel, rows of signed zeros only, infinities."""
    x = torch.stack(zero_sum(n, 12, dtype), -1)
    x[:2] = -0.0
    x[1, -1] = 0.0
    x[2, 3], x[3, 2] = math.inf, -math.inf
    return x


def the_only_family() -> compiled.Family:
    (family,) = compiled.families()
    return family


# Few, since a C++ compiler runs for each. Which leaf meets which is settled before anything is compiled; what a
# compiler might leave out is a rounding (to each dtype, of every add and between steps), a start or a compensation.
@pytest.mark.parametrize(
    ("order", "n", "leaf", "accumulate", "start"),
    [
        ("lanes(8) | fold_hi(4, round=bf16) | sequential", N, FP32, FP32, -0.0),
        ("threads(5, vector=2) | fold_lo(accumulate=fp16)", N, BF16, BF16, None),
        ("sequential(neumaier)", 4, BF16, FP32, 0.0),
    ],
)
def test_compiled_sums_are_the_eager_and_the_scalar_ones(
    order: str, n: int, leaf: torch.dtype, accumulate: torch.dtype, start: float | None
) -> None:
    x, sum_order = rows(leaf, n), parse(order)
    result = sum_axis(x, sum_order, -1, accumulate=accumulate, start=start, executor="compiled")
    family = the_only_family()
    assert family.function is not None, str(family)
    assert same_bits(result, sum_axis(x, sum_order, -1, accumulate=accumulate, start=start, executor="eager"))
    by_hand = expected(x.double().tolist(), sum_order, leaf, accumulate, start)
    finite = x.isfinite().all(-1)
    assert same_bits(result[finite], by_hand[finite])
    assert same_numbers(result, by_hand)


def test_squares_are_rounded_before_they_are_added() -> None:
    x, order = rows(FP32, 8), parse("fold_hi")
    with torch.inference_mode():
        result = sum_axis(x, order, -1, accumulate=FP32, times=x, executor="compiled")
    assert the_only_family().function is not None, str(the_only_family())
    assert same_bits(result, sum_axis(x, order, -1, accumulate=FP32, times=x, executor="eager"))
    contracted = sum_axis(x, parse("sequential(fma)"), -1, accumulate=FP32, times=x, executor="compiled")
    assert same_bits(contracted, sum_axis(x, parse("sequential(fma)"), -1, accumulate=FP32, times=x, executor="eager"))
    assert len(compiled.families()) == 1


def test_all_chunks_of_a_ring_are_one_compiled_sum() -> None:
    inputs = zero_sum(4, 4096, BF16)
    result = all_reduce(gloo.ALL_REDUCE, inputs, executor="compiled")[0]
    assert the_only_family().function is not None, str(the_only_family())
    assert same_bits(result, all_reduce(gloo.ALL_REDUCE, inputs, executor="eager")[0])
    # NCCL's chunks are as long, and its ring starts elsewhere.
    ring = all_reduce(nccl.RING, inputs, executor="compiled")[0]
    assert len(compiled.families()) == 1
    assert same_bits(ring, all_reduce(nccl.RING, inputs, executor="eager")[0])
    assert not same_bits(ring, result)


def test_a_sum_in_several_runs_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = zero_sum(4, 1000, FP32)
    in_one_run = all_reduce(nccl.TREE, inputs)[0]
    monkeypatch.setattr(summation, "AT_ONCE", 4 * 300)
    assert same_bits(all_reduce(nccl.TREE, inputs)[0], in_one_run)


def _spy(monkeypatch: pytest.MonkeyPatch, change: Callable[[Function], Function]) -> list[int]:
    """A compiler that makes `change` of a function; how often it was called."""
    calls: list[int] = []

    def compile_it(function: Function, inputs: object) -> Function:
        calls.append(1)
        return change(function)

    monkeypatch.setattr(compiled, "compiled_by_inductor", compile_it)
    return calls


def _no_compiler(function: Function) -> Function:
    raise FileNotFoundError("g++")


def _without_pads(function: Function) -> Function:
    """What Inductor does to constants: `x + 0` is `x`, so that -0 stays."""
    return lambda *tensors: function(tensors[0], *(torch.full_like(zero, -0.0) for zero in tensors[1:]))


def _in_fp32(function: Function) -> Function:
    """What it does to casts by default: nothing is rounded but the result."""
    return lambda x, *_: sum_axis(x.float(), parse("fold_hi"), -1, accumulate=FP32, executor="eager").to(x.dtype)


def _in_another_order(function: Function) -> Function:
    return lambda x, *rest: function(x.roll(1, -1), *rest)


@pytest.mark.parametrize(
    ("change", "dtype", "reason"),
    [
        (_no_compiler, FP32, "it cannot be compiled here: FileNotFoundError"),
        (_without_pads, FP32, "other bits when compiled"),
        (_in_fp32, BF16, "other bits when compiled"),
        (_in_another_order, FP32, "other bits when compiled"),
        (_in_another_order, BF16, "other bits when compiled"),
    ],
)
@pytest.mark.parametrize("executor", ["compiled", "auto"])
def test_what_cannot_be_compiled_or_has_other_bits_runs_eagerly_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Function], Function],
    dtype: torch.dtype,
    reason: str,
    executor: str,
) -> None:
    monkeypatch.setattr(compiled, "PER_STEP", 0)
    calls, x, order = _spy(monkeypatch, change), rows(dtype), parse("fold_hi")
    eager = sum_axis(x, order, -1, accumulate=dtype, executor="eager")
    for _ in range(2):
        assert same_bits(sum_axis(x, order, -1, accumulate=dtype, executor=executor), eager)  # type: ignore[arg-type]
    assert the_only_family().why_eager == reason
    assert the_only_family().function is None
    assert len(calls) == 1


def test_one_family_falls_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows(FP32)
    _spy(monkeypatch, _without_pads)
    for order in ("fold_hi", "fold_hi(skip)"):
        sum_axis(x, parse(order), -1, accumulate=FP32, executor="compiled")
    lines = [str(family).split(": ", 1) for family in compiled.families()]
    assert [name for name, _ in lines] == [
        f"{order} over 1 x float32 [12, 12], each add rounded to float32" for order in ("fold_hi", "fold_hi(skip)")
    ]
    assert lines[0][1] == "eager, other bits when compiled"
    assert [family.function is None for family in compiled.families()] == [True, False]


def test_auto_compiles_what_has_done_enough_and_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    x, order = rows(FP32), parse("sequential")
    calls = _spy(monkeypatch, lambda function: function)
    monkeypatch.setattr(compiled, "PER_STEP", 2 * x.numel() / (N - 1))
    monkeypatch.setattr(compiled, "_faster", lambda *_: 3.0)
    for count in (0, 1, 1):
        sum_axis(x, order, -1, accumulate=FP32)
        assert len(calls) == count
    assert str(the_only_family()).endswith("each add rounded to float32: compiled, 3.0 times as quick as eager")


def test_auto_stays_eager_where_compiling_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    x, functions = rows(FP32), []

    def spied(function: Function) -> Function:
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            functions.append(1)
            return function(*tensors)

        return run

    _spy(monkeypatch, spied)
    monkeypatch.setattr(compiled, "PER_STEP", 0)
    monkeypatch.setattr(compiled, "_faster", lambda *_: 1.0)
    for _ in range(2):
        sum_axis(x, parse("sequential"), -1, accumulate=FP32)
    tested = len(functions)
    assert tested > 0  # by the self-test, and by nothing else
    assert the_only_family().why_eager == "1.0 times as quick when compiled"
    sum_axis(x, parse("sequential"), -1, accumulate=FP32, executor="compiled")
    assert len(functions) == tested + 1


def test_small_sums_long_graphs_and_gradients_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _spy(monkeypatch, lambda function: function)
    x = rows(FP32)
    sum_axis(x, parse("sequential"), -1, accumulate=FP32)
    sum_axis(x, parse("sequential"), -1, accumulate=FP32, executor="eager")
    assert the_only_family().elements == x.numel()
    sum_axis(x.clone().requires_grad_(), parse("fold_lo"), -1, accumulate=FP32, executor="compiled")
    sum_axis(x[:1].expand(4, N), parse("fold_lo"), -1, accumulate=FP32, executor="compiled")
    assert len(compiled.families()) == 1
    sum_leaves(torch.ones(130, 3).unbind(), tuple(range(130)), accumulate=FP32, executor="compiled")
    assert compiled.families()[1].why_eager == "129 steps, more than 128"
    assert calls == []


def test_which_nan_a_sum_is_does_not_depend_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    _spy(monkeypatch, lambda function: lambda *tensors: torch.where((s := function(*tensors)).isnan(), -math.nan, s))
    x = rows(FP32)
    x[4, 0] = torch.tensor(0x7FC12345, dtype=torch.int32).view(FP32)
    result = sum_axis(x, parse("sequential"), -1, accumulate=FP32, executor="compiled")
    assert the_only_family().function is not None
    assert same_bits(result, sum_axis(x, parse("sequential"), -1, accumulate=FP32, executor="eager"))
    assert result[4].isnan()


def test_trees_that_say_more_than_their_order_are_families_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _spy(monkeypatch, lambda function: function)
    leaves = list(zero_sum(4, 64, BF16))
    plain, inner = ((3, 2), (1, 0)), Sum(children=(3, 2), round="bf16")
    for tree in (plain, (inner, Sum(children=(1, 0), round="bf16"))):
        result = sum_leaves(leaves, tree, accumulate=FP32, executor="compiled")
        assert same_bits(result, sum_tree(leaves.__getitem__, tree, accumulate=FP32))
    assert len(compiled.families()) == 2
