"""Shipped maps on every kind of model: what a map says of other kinds says nothing of this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.evidence.maps.module_map import load_map
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.spec import reader
from tests.small_models import SMALL


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("name", reader.shipped("maps"))
def test_what_refuses_another_model_is_shown_by_this_one(name: str, model: str, tmp_path: Path) -> None:
    """By `every` a trace is taken for one of another model: what it lists of values that this model has is shown."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL[model]), "utf-8")
    graph = expand(Config(tmp_path / "config.json"))
    module_map = load_map(name, Where(reader.shipped("maps")[name]))
    shown = {(place.module, place.side) for places in module_map.on(graph).values() for place in places}
    values = {value for node in graph.nodes for value in node.values}
    listed = {(path, side) for path, side, value in module_map.every(graph.model_type, graph.layers) if value in values}
    assert shown
    assert listed - shown == set()
