"""torch's own CPU kernels: what is found replays bit for bit, and where the tree changes is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from moeparity.numerics.dtypes import torch_dtype
from moeparity.probe import show
from moeparity.probe.calls import Setup
from moeparity.probe.find import Result, probe
from moeparity.probe.target import KINDS, Function
from tests.printed import printed
from tests.probe import kernels


def probed(
    call: Callable[..., Any],
    kind: str,
    n: int,
    dtype: str = "fp32",
    *,
    m: Sequence[int] = (16,),
    width: int = 64,
    **more: int,
) -> Result:
    setups = [Setup(n=n, dtype=torch_dtype(dtype), m=rows, width=width, **more) for rows in m]
    result = probe(Function(call.__name__, call, KINDS[kind]), setups)
    assert result.trees
    return result


def assert_all_replayed(result: Result) -> None:
    for name, tree_ in result.trees.items():
        assert tree_.order is not None, (name, tree_.reason)
        assert tree_.equal == tree_.replayed > 0, (name, tree_)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("n", [8, 100, 1000])
def test_row_sums_are_the_cascade(n: int, dtype: str) -> None:
    result = probed(kernels.row_sum, "sum", n, dtype)
    assert_all_replayed(result)
    if n == 1000:
        assert str(result.trees["A"].order) == ("cascade" if dtype == "fp32" else "cascade(halves)")
        assert result.trees["A"].accumulate == "fp32"


def test_a_mean_is_a_scaled_sum() -> None:
    result = probed(kernels.mean, "sum", 300)
    assert_all_replayed(result)
    assert (str(result.trees["A"].order), result.trees["A"].after) == ("cascade", "/ n")


def test_sums_of_columns_differ_with_their_number_and_in_the_tail() -> None:
    result = probed(kernels.column_sum, "sum", 128, m=(1, 2, 100))
    assert_all_replayed(result)
    assert len(result.trees) == 3
    (_, tail, _) = result.places[-1]
    assert [len(place.positions) for place in tail] == [96, 4]


def test_one_row_in_fp32_replays_or_is_said_not_to() -> None:
    """MKL's AVX-512 GEMV fuses some of its products and not others, which no order of ours says; its tree is found."""
    result = probed(kernels.linear, "linear", 384, m=(1,))
    (tree_,) = result.trees.values()
    assert tree_.order is not None, tree_.reason
    is_known = tree_.equal == tree_.replayed > 0
    assert ("no order can be set, since A replays" in " ".join(printed(show.probed(result)).split())) != is_known
    assert bool(result.unknown) != is_known


@pytest.mark.parametrize(("dtype", "rows"), [("fp32", (2, 3, 4, 5, 8)), ("bf16", (1, 2, 3, 4, 5, 8))])
def test_linear_replays_for_every_number_of_rows(dtype: str, rows: tuple[int, ...]) -> None:
    result = probed(kernels.linear, "linear", 384, dtype, m=rows)
    assert_all_replayed(result)
    assert all(tree_.products == ("exact" if dtype == "bf16" else tree_.products) for tree_ in result.trees.values())
    assert all(not why for _, _, why in result.places)


def test_the_classes_of_linear_are_those_of_its_bits() -> None:
    """M in one class give a row the same bits as each other, M in different classes do not."""
    sizes = (1, 2, 4, 8)
    result = probed(kernels.linear, "linear", 256, m=sizes)
    class_of = {setup.m: places[0].name for setup, places, _ in result.places}
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(8, 256, generator=draw), torch.randn(64, 256, generator=draw)
    outputs = {m: kernels.linear(x[:1].expand(m, -1).contiguous(), weight)[0] for m in sizes}
    for a in sizes:
        for b in sizes:
            assert torch.equal(outputs[a], outputs[b]) == (class_of[a] == class_of[b]), (a, b)


def test_other_gemms_dots_and_combines() -> None:
    assert_all_replayed(probed(kernels.transposed_linear, "linear", 256, m=(1, 8)))
    assert_all_replayed(probed(kernels.dot, "dot", 64, m=(1,)))
    for dtype in ("fp32", "bf16"):
        assert_all_replayed(probed(kernels.combine, "combine", 8, dtype, m=(4,)))


def test_index_put_rounds_each_step_and_has_no_tree_on_two_threads() -> None:
    once = probed(kernels.accumulated, "sum", 64, "bf16", threads=1)
    assert_all_replayed(once)
    assert (str(once.trees["A"].order), once.trees["A"].accumulate) == ("sequential(zero)", "bf16")
    draws = Function("accumulated", kernels.accumulated, KINDS["sum"])
    setup = Setup(n=4096, dtype=torch.float32, m=32, width=1, threads=2)
    for _ in range(4):  # the threads may by chance run one after the other
        result = probe(draws, [setup])
        reasons = [why for _, _, why in result.places if why] + [
            tree_.reason for tree_ in result.trees.values() if tree_.reason
        ]
        if reasons:
            break
    assert reasons
    assert all(tree_.order is None for tree_ in result.trees.values())


def test_alignment_is_a_setup_of_its_own() -> None:
    result = probed(kernels.row_sum, "sum", 100, offset=3)
    assert_all_replayed(result)
    assert result.places[0][0].offset == 3


def test_where_the_tree_changes_with_alignment_is_found() -> None:
    offsets = (0, 1, 8, 15, 16, 17)
    setups = [Setup(n=40, dtype=torch.float32, m=4, width=1, offset=offset) for offset in offsets]
    result = probe(Function("by_address", kernels.by_address, KINDS["sum"]), setups)
    assert_all_replayed(result)
    orders = {setup.offset: str(result.trees[place.name].order) for setup, (place,), _ in result.places}
    aligned = orders[0]
    assert aligned != "sequential"
    assert orders == {offset: aligned if offset % 16 == 0 else "sequential" for offset in offsets}
