"""A live gloo all-reduce, probed: it is the shipped order map, element by element, and no other ring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.numerics.collectives import gloo
from moeparity.numerics.order_map import Message
from tests.command import run_live
from tests.probe.live_ranks import CASES


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    run_live("tests.probe.live_ranks", str(folder))
    return folder


@pytest.mark.parametrize("world", CASES)
def test_the_order_of_a_live_group_is_the_order_map(world: int, live: Path) -> None:
    (dtype, elements), results = CASES[world], json.loads((live / f"{world}.json").read_text())
    assert results["why"] == ""
    assert "gloo.all_reduce" in results["collectives"]
    assert all(results["replayed"])
    assert results["held"]["gloo.all_reduce"] == [True]
    message = Message(elements, 4 if dtype == "fp32" else 2, world)
    trees = gloo.ALL_REDUCE.order_map.trees(message)
    assert results["parts"] == [[part.start, part.stop, part.stop - part.start] for part, _ in trees]
    if world == 4:
        assert results["held"]["nccl.ring"] == [False]
        assert results["collectives"] == ["gloo.all_reduce"]
