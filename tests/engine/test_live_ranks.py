"""Real gloo ranks give the bits of simulated ones, for a whole MoE forward and a cached decode, cut in all ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.live_ranks import CASES, RANKS
from tests.live_group import run_group


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """By rank and case; none of the ranks outlives this."""
    out = tmp_path_factory.mktemp("live_ranks") / "out"
    run_group("tests.engine.live_ranks", str(out))
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.differs])
def test_real_ranks_have_the_bits_of_simulated_ones(name: str, outcomes: list[dict[str, dict[str, Any]]]) -> None:
    case = CASES[name]
    for of_rank in outcomes:
        outcome = of_rank[name]
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
    name: str, outcomes: list[dict[str, dict[str, Any]]]
) -> None:
    stages = CASES[name].placement["pipeline"]
    ranks = RANKS // stages
    for rank, of_rank in enumerate(outcomes):
        sources = of_rank[name]["received"]
        assert set(sources) == ({rank - ranks} if rank >= ranks else set())
        assert len(sources) == len(outcomes[-1][name]["received"]) or rank < ranks


def test_a_backend_of_another_order_is_seen_and_named(outcomes: list[dict[str, dict[str, Any]]]) -> None:
    for of_rank in outcomes:
        outcome = of_rank["another order"]
        assert "logits" in outcome["unequal"]
        assert all(reduction["differing"] > 0 for reduction in outcome["reductions"])
        assert all(reduction["orders"] == ["gloo.all_reduce"] for reduction in outcome["reductions"])
