"""Sums in orders that no file lists are told under a budget, judged on rows of their own; wrong values never are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.probe.likely import tree_key
from tests.command import inside
from tests.evidence.explain import unlisted
from tests.evidence.explain.observed import on_screen
from tests.evidence.traced import captured, tokens

BUDGET = 240.0
"""Seconds, of which a node may use half; a quick machine needs five."""
COMBINE, NORM, PROJECTION = "layers[1].moe.combine", "norm", "layers[0].attention.o_proj"
CROSSED, CHAINED, STRIDED = "tree(0+3+(1+2))", "tree(2+0+3+1)", "lanes(12) | reverse"


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """No listed choice explains these nodes: a fraction of the search for one shows that."""
    monkeypatch.setattr("moeparity.evidence.explain.trace.WORK", 512)


def _explained(
    checkpoint: Path,
    folder: Path,
    node: str,
    patch: Callable[[Any], object],
    *,
    dtype: torch.dtype = torch.bfloat16,
    shape: tuple[int, int] = (4, 16),
    budget: float | None = BUDGET,
) -> Explanation:
    trace = captured(checkpoint, folder / "trace", tokens(shape), patch=patch, dtype=dtype)
    (explanation,) = explain_trace(
        ExplainRequest(trace=trace, checkpoint=checkpoint, nodes=(node,), budget=budget)
    ).nodes
    return explanation


@pytest.mark.parametrize(
    ("patch", "node", "place", "leaves", "order", "dtype", "rows"),
    [
        (partial(unlisted.combine, add=unlisted.chained), COMBINE, "order", 4, CHAINED, torch.bfloat16, 16),
        (partial(unlisted.norm, add=unlisted.strided(12)), NORM, "order", 64, STRIDED, torch.float32, 80),
        (partial(unlisted.projection, add=unlisted.crossed), PROJECTION, "splits_order", 4, CROSSED, torch.float32, 16),
    ],
    ids=["a combine's slots", "a norm's strides", "split-K"],
)
def test_an_order_that_no_file_lists_is_told(
    qwen3_moe: Path,
    tmp_path: Path,
    patch: Callable[[Any], object],
    node: str,
    place: str,
    leaves: int,
    order: str,
    dtype: torch.dtype,
    rows: int,
) -> None:
    explanation = _explained(qwen3_moe, tmp_path, node, patch, dtype=dtype, shape=(4, rows))
    assert explanation.explained
    assert explanation.orders is not None
    answer = explanation.orders.found[0]
    assert answer.place == f"{node}:{place}"
    assert tree_key(answer.order, leaves) == tree_key(order, leaves)
    assert f"{node}:{place}={answer.order}" in explanation.matches[0].choices
    assert (answer.fitted + answer.others, answer.fitted <= 32) == (4 * rows, True)
    assert answer.deciding > 30
    assert 0 < explanation.orders.seconds < BUDGET


@pytest.mark.parametrize(
    ("patch", "node"),
    [(unlisted.nudged_expert, COMBINE), (unlisted.nudged_rows, COMBINE), (unlisted.scaled_norm, NORM)],
    ids=["an expert's weights", "an element of every token", "a norm"],
)
def test_no_order_explains_a_wrong_value(
    qwen3_moe: Path, tmp_path: Path, patch: Callable[[Any], object], node: str
) -> None:
    explanation = _explained(qwen3_moe, tmp_path, node, patch, budget=40.0)
    assert not explanation.explained
    assert explanation.orders is not None
    assert (explanation.orders.found, explanation.orders.tried > 0) == ((), True)
    assert explanation.orders.seconds < 40.0


def test_two_orders_at_once_that_no_file_lists_are_told(qwen3_moe: Path, tmp_path: Path) -> None:
    """Each by its place, though neither alone gives a row's bits, and beside another choice that a file lists."""
    patch, node = unlisted.router_twice, "layers[1].moe.router"
    explanation = _explained(qwen3_moe, tmp_path, node, patch, dtype=torch.float32, shape=(4, 64), budget=4 * BUDGET)
    assert explanation.explained
    assert explanation.orders is not None
    trees = {answer.place: answer for answer in explanation.orders.found}
    softmax, weights = (trees[f"{node}:{name}"] for name in ("denominator", "renormalize_order"))
    assert tree_key(softmax.order, 16) == tree_key("lanes(3) | reverse", 16)
    assert tree_key(weights.order, 4) == tree_key(CHAINED, 4)
    assert f"{node}:softmax=divide" in explanation.matches[0].choices
    assert min(softmax.deciding, weights.deciding) > 30


@pytest.mark.parametrize(
    ("patch", "node"),
    [
        (unlisted.projection_twice, PROJECTION),
        (unlisted.head_twice, "lm_head"),
        (unlisted.attention_twice, "layers[1].attention.attend"),
    ],
    ids=["parts and products of a projection", "of the head", "softmax and values of attention"],
)
def test_two_orders_that_were_not_reached_have_no_name(
    qwen3_moe: Path, tmp_path: Path, patch: Callable[[Any], object], node: str
) -> None:
    """In so short a time, or since the order of one is no choice; nor is the nearest listed choice a name."""
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((4, 16)), patch=patch, dtype=torch.float32)
    result = explain_trace(ExplainRequest(trace=trace, checkpoint=qwen3_moe, nodes=(node,), budget=10.0))
    (explanation,) = result.nodes
    assert (explanation.explained, explanation.orders is not None and explanation.orders.found) == (False, ())
    screen = on_screen(result)
    assert "no single choice explains it: two or more that no file lists may act at once" in screen
    assert "nearest: the profile as it is" in screen


def test_of_few_rows_an_order_is_not_believed(qwen3_moe: Path, tmp_path: Path) -> None:
    """A norm's row is one sum, and of 64 torch's own order gives most: the right order is told, and not taken."""
    patch = partial(unlisted.norm, add=unlisted.strided(12))
    explanation = _explained(qwen3_moe, tmp_path, NORM, patch, dtype=torch.float32)
    assert not explanation.explained
    assert explanation.orders is not None
    assert explanation.orders.found == ()
    assert STRIDED in [unsure.order for unsure in explanation.orders.unsure]


def test_the_command_says_the_order_and_the_time(qwen3_moe: Path, tmp_path: Path) -> None:
    patch = partial(unlisted.combine, add=unlisted.crossed)
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((4, 16)), patch=patch)
    answer, profile = tmp_path / "answer.json", tmp_path / "mine.yaml"
    arguments = ("explain", trace, "--checkpoint", qwen3_moe, "--node", COMBINE)
    without = inside(*arguments)
    assert without.returncode == 1
    assert "orders" not in without.stdout
    options = ("--budget", str(BUDGET), "--json", answer, "--profile-out", profile)
    result = inside(*arguments, *options)
    assert result.returncode == 0, result.stderr
    screen = " ".join(result.stdout.split())
    (node,) = json.loads(answer.read_text())["nodes"]
    (order,) = node["orders"]["found"]
    assert f"order: {order['place']}={order['order']}, which no file lists: found on {order['fitted']} row" in screen
    assert f"verified on {order['others']} others" in screen
    assert f"s of {BUDGET:g} s spent on orders that no file lists" in screen
    assert f"order: {order['order']}" in profile.read_text()


def test_where_listed_choices_explain_a_node_no_order_is_sought(qwen3_moe: Path, tmp_path: Path) -> None:
    trace = captured(qwen3_moe, tmp_path / "trace", tokens((4, 16)))
    answer = explain_trace(ExplainRequest(trace=trace, checkpoint=qwen3_moe, nodes=("layers[1].**",), budget=BUDGET))
    assert all(node.explained and node.orders is None for node in answer.nodes)
    assert answer.seconds_on_orders == 0
