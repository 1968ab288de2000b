"""Faults of what one model has alone, or holds in a layout of its own: found where they stand, and by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.options import Options
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

TOKENS = {"input_ids": random_tokens(3, 8)}
FAULTS: list[tuple[str, str, str, dict[str, Any]]] = [
    # Queries, keys and values of one projection; experts below one another in matrices of all.
    ("dbrx", "clip-missing", "layers[1].attention.clipped", {}),
    ("dbrx", "gate-and-up-exchanged", "layers[0].moe.experts", {}),
    ("dbrx", "expert-of-another-expert", "layers[1].moe.experts", {"expert": 3, "other": 5}),
    ("dbrx", "expert-zeroed", "layers[1].moe.experts", {"expert": 3}),
    # Gated short convolutions.
    ("lfm2_moe", "gate-missing", "layers[0].convolution.entered", {}),
    ("lfm2_moe", "gate-missing", "layers[2].convolution.gated", {}),
    ("lfm2_moe", "correction-bias-missing", "layers[1].moe.router", {}),
    # Attention that a softplus gates, a sum of experts that is scaled, heads by layer.
    ("laguna", "gate-missing", "layers[1].attention.gated", {}),
    ("laguna", "routed-scaling", "layers[1].moe.combine", {"scale": 1.0}),
    ("laguna", "router-cap-missing", "layers[1].moe.router", {}),
    # The second of two attentions, experts that hand on what they read, what multiplies queries.
    ("longcat_flash", "residual-missing", "layers[1].mlp.residual", {}),
    ("longcat_flash", "weights-transposed", "layers[0].second_attention.q_a_proj", {}),
    ("longcat_flash", "expert-zeroed", "layers[1].moe.experts", {"expert": 3}),
    ("longcat_flash", "multiplier-missing", "layers[1].second_attention.q_scaled", {}),
]


@pytest.mark.parametrize(("model", "fault", "node", "values"), FAULTS, ids=lambda part: part or "")
def test_a_fault_is_found_by_name(
    model: str, fault: str, node: str, values: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(model)
    planted = {"name": fault, "nodes": node, "values": values}
    recipe = write_recipe(tmp_path, folder, TOKENS, {}, {"faults": [planted]})
    report = bisect(recipe, device="cpu", opener=opened, options=Options(floor=False))
    assert [root.node for root in report.roots] == [node]
    (toggle,) = report.toggles
    assert toggle.restores_all
    assert not toggle.had_no_effect
    assert report.summary.blame == f"{toggle.name} makes all of it"
