"""A live gloo all-reduce, probed: it is the shipped order map, element by element, and no other ring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moeparity.numerics.collectives import gloo
from moeparity.numerics.order_map import Message
from tests.probe.live_ranks import CASES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "tests.uncollected", "tests.probe.live_ranks", str(folder)]
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stderr
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
