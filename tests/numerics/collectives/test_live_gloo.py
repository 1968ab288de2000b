"""Simulated ranks against live gloo process groups, bit for bit: one group a world size, on loopback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.numerics.collectives import gloo, nccl
from moeparity.numerics.collectives.execute import all_reduce, reduce_scatter
from moeparity.numerics.order_map import Rotation, Whole
from moeparity.ops.kernels.log_probs import log_probs
from tests.command import run_live
from tests.numerics.collectives.live_gloo import Case, Kind, cases, digest
from tests.numerics.collectives.to_groups import WAYS, WIDTH
from tests.ops.log_probs import DEFAULTS
from tests.verified import record

WORLDS = (2, 3, 4, 8)
LOG_PROBS: dict[Kind, str] = {
    "log_softmax": "gloo processes",
    "loss_parallel": f"torch {torch.__version__} loss_parallel over gloo",
}
"""Of the cases that are no collectives, against what they are run."""


def choices(case: Case, world: int) -> dict[str, Any]:
    """What the op has where a case's logits are cut over so many ranks; torch's own hands on the logits' dtype."""
    output = case.dtype if case.kind == "loss_parallel" else torch.float32
    return DEFAULTS | {"tensor": world, "collective": gloo.ALL_REDUCE.name, "output": output}


def simulated(case: Case, world: int) -> list[torch.Tensor]:
    if case.kind in LOG_PROBS:
        scores = log_probs(case.logits(world)[None], w={}, p={}, at=choices(case, world))
        return list(scores[0].chunk(world, -1))
    inputs = case.inputs(world)
    if case.rows:
        return WAYS[case.kind](gloo.ALL_REDUCE, [x.view(-1, WIDTH) for x in inputs], case.rows)
    if case.kind == "reduce_scatter_tensor":
        return reduce_scatter(gloo.REDUCE_SCATTER_TENSOR, inputs)
    if case.kind == "reduce_scatter_list":
        return reduce_scatter(gloo.REDUCE_SCATTER_LIST, inputs)
    return all_reduce(gloo.ALL_REDUCE, inputs, average=case.kind == "average")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a digest of what each rank of each world got in each case."""
    folder = tmp_path_factory.mktemp("live")
    run_live("tests.numerics.collectives.live_gloo", str(folder), *map(str, WORLDS))
    return folder


@pytest.mark.parametrize("world", WORLDS)
def test_live_groups_equal_simulated_ranks(world: int, live: Path) -> None:
    digests: list[list[str]] = [torch.load(live / f"{world}-{rank}.pt") for rank in range(world)]
    wrong = []
    for index, case in enumerate(cases(world)):
        expected = [digest(output) for output in simulated(case, world)]
        wrong += [(case, rank) for rank in range(world) if digests[rank][index] != expected[rank]]
    assert wrong == []
    for collective in gloo.ALL:
        record("all_reduce", {"reduce": "now", "collective": collective.name}, "gloo processes")
    for case in cases(world):
        if case.kind in LOG_PROBS:
            record("log_probs", choices(case, world), LOG_PROBS[case.kind], operands=case.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_cases_would_show_another_order_or_cut(dtype: torch.dtype) -> None:
    """What gloo is compared with differs from NCCL's direction, from one chunk, and from the other scatter form.

    With three ranks both directions are the same sums, so this takes four.
    """
    inputs = Case("all_reduce", dtype, 3004).inputs(4)
    right = digest(all_reduce(gloo.ALL_REDUCE, inputs)[0])
    for order_map in (
        replace(gloo.ALL_REDUCE.order_map, order=Rotation(1, 1)),
        replace(gloo.ALL_REDUCE.order_map, partition=Whole()),
    ):
        assert digest(all_reduce(replace(gloo.ALL_REDUCE, order_map=order_map), inputs)[0]) != right
    forms = [reduce_scatter(form, inputs) for form in (gloo.REDUCE_SCATTER_TENSOR, gloo.REDUCE_SCATTER_LIST)]
    assert digest(torch.cat(forms[0])) != digest(torch.cat(forms[1]))


@pytest.mark.parametrize("kind", LOG_PROBS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_would_show_another_order_or_number_of_ranks(kind: Kind, dtype: torch.dtype) -> None:
    case = Case(kind, dtype, 37 * 501 if kind == "loss_parallel" else 7 * 501)
    at, x = choices(case, 4) | {"output": torch.float32}, case.logits(4)[None]
    choices_: list[dict[str, Any]] = [
        {},
        {"collective": nccl.RING.name},
        {"tensor": 3},
        {"tensor": 1},
        {"order": "sequential"},
    ]
    assert len({digest(log_probs(x, w={}, p={}, at=at | choice)) for choice in choices_}) == len(choices_)
