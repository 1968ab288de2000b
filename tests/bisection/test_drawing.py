"""The drawing of a plan: layers of a kind once, every edge of the graph once, differing nodes marked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moeparity.bisection.diagram import Drawing
from moeparity.bisection.drawing import drawing
from moeparity.bisection.outline import outline_checkpoint, outline_recipe
from moeparity.plan.address import role
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.errors.base import BAD, BASE

ROOT = Path(__file__).parents[2]
DEEPSEEK = json.loads((BAD / "checkpoint-one-expert-per-group" / "config.json").read_text("utf-8")) | {"n_group": 2}


def titles(drawn: Drawing) -> list[str]:
    return [f"{group.title} {' '.join(inner.title for inner in group.groups)}" for group in drawn.groups]


def test_equal_layers_are_drawn_once() -> None:
    drawn = drawing(outline_recipe(ROOT / "recipes" / "rounding.yaml"))
    assert titles(drawn) == ["layers[0:4] attention moe"]
    names = [box.name for box in drawn.groups[0].groups[1].boxes]
    assert names == ["norm", "gate", "router", "experts", "combine", "reduce", "residual"]
    differing = {box.name: box.differences for box in drawn.everything if box.differences}
    assert differing.keys() == {"attend", "gate", "experts", "combine"}
    assert differing["gate"] == ("output: bf16 → fp32",)
    assert "scores: bf16 → unused" in differing["attend"]


def test_every_edge_of_the_graph_is_drawn_once(tmp_path: Path) -> None:
    config = DEEPSEEK | {"num_hidden_layers": 5, "first_k_dense_replace": 2, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = expand(Config(tmp_path / "config.json"))
    drawn = drawing(outline_checkpoint(tmp_path, "hf-eager"))
    assert titles(drawn) == ["layers[0:2] attention mlp", "layers[2:5] attention moe"]
    assert not any(box.differences for box in drawn.everything)
    keys = [box.key for box in drawn.everything]
    keys += [group.key for outer in drawn.groups for group in (outer, *outer.groups)]
    assert len(keys) == len(set(keys))
    ends = {box.key for box in drawn.everything}
    assert {end for arrow in drawn.arrows for end in (arrow.source, arrow.target)} == ends
    kind: dict[int | None, str] = {index: "dense" if index < 2 else "sparse" for index in range(5)}
    producers = {value: node for node in graph.nodes for value in node.values}
    edges = {
        (
            value if value not in producers else (kind.get(producers[value].layer), role(value)),
            kind.get(n.layer),
            role(n.name),
        )
        for n in graph.nodes
        for value in n.inputs
    }
    assert len(drawn.arrows) == len(set(drawn.arrows)) == len(edges)


def test_edges_lead_back_only_to_a_next_layer() -> None:
    drawn = drawing(outline_checkpoint(BASE, "hf-eager"))
    back = {(arrow.source, arrow.target) for arrow in drawn.arrows if arrow.kind == "repeat"}
    assert back == {("kind0MoeResidual", "kind0AttentionNorm"), ("kind0MoeResidual", "kind0AttentionResidual")}
    labels = {(arrow.source, arrow.value) for arrow in drawn.arrows if arrow.value}
    assert {("kind0MoeRouter", "ids"), ("kind0MoeRouter", "weights"), ("topRotary", "cos")} < labels


@pytest.mark.parametrize(("leaves", "kind"), [("slot", "unread"), ("expert", "read")])
def test_an_input_that_is_not_read_is_marked(tmp_path: Path, leaves: str, kind: str) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        f"kind: profile\nname: mine\nextends: hf-eager\nrules:\n  - {{op: combine, set: {{leaves: {leaves}}}}}\n"
    )
    drawn = drawing(outline_checkpoint(BASE, str(profile)))
    (ids,) = [a for a in drawn.arrows if a.target == "kind0MoeCombine" and a.value == "ids"]
    assert ids.kind == kind


def test_a_layer_that_is_set_otherwise_is_drawn_apart(tmp_path: Path) -> None:
    recipe = (BASE / "recipe.yaml").read_text().replace("checkpoint: .", f"checkpoint: {BASE}")
    recipe = recipe.replace("{profile: hf-default}", '{profile: hf-eager, set: {"layers[1].moe.gate:output": fp32}}')
    (tmp_path / "recipe.yaml").write_text(recipe)
    drawn = drawing(outline_recipe(tmp_path / "recipe.yaml"))
    assert titles(drawn) == ["layers[0] attention moe", "layers[1] attention moe"]
    assert [box.key for box in drawn.everything if box.differences] == ["kind1MoeGate"]
    assert not [arrow for arrow in drawn.arrows if arrow.kind == "repeat"]


@pytest.mark.parametrize(("form", "first"), [("--mermaid", "---\ntitle: "), ("--dot", "digraph moeparity {\n")])
def test_the_command_prints_it_without_torch(form: str, first: str) -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\n"
        f"sys.argv = ['moeparity', 'show', 'plan', 'recipes/rounding.yaml', '{form}']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(first)
    assert "layers[0:4]" in done.stdout
