"""Real gloo ranks give the bits of simulated ones, for a whole MoE forward and a cached decode, cut in all ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import run_live
from tests.engine.live_ranks import CASES, WORLDS


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """By case and rank; none of the ranks outlives this."""
    out = tmp_path_factory.mktemp("live_ranks") / "out"
    run_live("tests.engine.live_ranks", str(out))
    by_rank = {
        world: [json.loads(Path(f"{out}.{world}.{rank}").read_text()) for rank in range(world)] for world in WORLDS
    }
    return {name: [of_rank[name] for of_rank in by_rank[case.ranks]] for name, case in CASES.items()}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.differs])
def test_real_ranks_have_the_bits_of_simulated_ones(name: str, outcomes: dict[str, list[dict[str, Any]]]) -> None:
    case = CASES[name]
    for outcome in outcomes[name]:
        assert outcome["values"] > 5
        assert outcome["unequal"] == []
        assert all(reduction["differing"] == 0 for reduction in outcome["reductions"])
        calls = {(reduction["call"], reduction["ranks"]) for reduction in outcome["reductions"]}
        call = "reduce_scatter_tensor" if case.placement.get("sequence") else "all_reduce"
        tensor, groups = (int(case.placement.get(name, 1)) for name in ("tensor", "attention"))
        widths = {tensor, case.placement.get("expert", tensor * groups)}
        assert calls == (set() if name == "column" else {(call, width) for width in widths})


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "pipeline" in case.placement])
def test_each_stage_is_sent_what_it_reads_by_the_rank_in_its_place(
    name: str, outcomes: dict[str, list[dict[str, Any]]]
) -> None:
    stages = CASES[name].placement["pipeline"]
    ranks = CASES[name].ranks // stages
    for rank, outcome in enumerate(outcomes[name]):
        sources = outcome["received"]
        assert set(sources) == ({rank - ranks} if rank >= ranks else set())
        assert len(sources) == len(outcomes[name][-1]["received"]) or rank < ranks


def test_a_backend_of_another_order_is_seen_and_named(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    for outcome in outcomes["another order"]:
        assert "logits" in outcome["unequal"]
        assert all(reduction["differing"] > 0 for reduction in outcome["reductions"])
        assert all(reduction["orders"] == ["gloo.all_reduce"] for reduction in outcome["reductions"])
