"""The page of models: each that transformers has is on it once, with a graph or with what it needs."""

from __future__ import annotations

import json

from moeparity.documents.checked import shipped
from scripts.pages import models


def test_each_has_a_graph_or_a_need_and_none_both() -> None:
    needs = json.loads(models.WITHOUT.read_text("utf-8"))["needs"]
    assert models.without_graph() == needs, "a need of a model that has a graph, or of none"
    assert len(models.with_experts()) - len(needs) >= 17


def test_every_graph_has_small_checkpoints() -> None:
    rows = [line for line in models.page().splitlines() if " lines" in line]
    assert len(rows) == len(shipped("models"))
    assert not [row for row in rows if "|  |" in row]
