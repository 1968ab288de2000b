"""Graph files that extend another one: what is merged, replaced and dropped, and where each line stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.spec import reader
from tests.errors.base import CONFIG

BASE = shipped("models")["qwen3_moe"]
HEAD = "kind: graph\nextends: qwen3_moe\nmodel_type: [qwen3_moe]\n"


def graph(folder: Path, text: str) -> Graph:
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "graph.yaml").write_text(HEAD + text, "utf-8")
    return expand(Config(folder / "config.json"), folder / "graph.yaml")


def names(of: Graph, block: str) -> list[str]:
    prefix = f"layers[0].{block}."
    return [node.name.removeprefix(prefix) for node in of.nodes if node.name.startswith(prefix)]


def test_nothing_said_is_the_same_graph(tmp_path: Path) -> None:
    ours, base = graph(tmp_path, ""), expand(Config(tmp_path / "config.json"))
    assert [(n.name, n.inputs, n.params, n.weights) for n in ours.nodes] == [
        (n.name, n.inputs, n.params, n.weights) for n in base.nodes
    ]
    assert {node.where.path for node in ours.nodes} == {BASE}


def test_a_new_node_stands_before_the_next_that_the_base_has(tmp_path: Path) -> None:
    changed = """
blocks:
  attention:
    nodes:
      q_clip: {op: clamp, in: [q_norm], params: {limit: 1.0}}
      rope: {in: [q_clip, k_norm, rotary.cos, rotary.sin]}
      out_clip: {op: clamp, in: [residual], params: {limit: 1.0}}
    output: out_clip
"""
    ours = graph(tmp_path, changed)
    order = names(ours, "attention")
    assert order[order.index("k_norm") :] == [
        *("k_norm", "q_clip", "rope", "cache", "attend", "o_proj", "reduce", "residual", "out_clip")
    ]
    nodes = {node.name: node for node in ours.nodes}
    assert nodes["layers[0].attention.q_clip"].where.path == tmp_path / "graph.yaml"
    assert nodes["layers[0].attention.q_clip"].where.line == 8
    assert nodes["layers[0].attention.rope"].op.name == "rope"
    assert nodes["layers[0].moe.norm"].inputs == ("layers[0].attention.out_clip",)


def test_null_drops_a_key_of_the_base(tmp_path: Path) -> None:
    rope = "rope: {in: [q_proj, k_proj, rotary.cos, rotary.sin]}"
    changed = f"blocks: {{attention: {{nodes: {{q_norm: null, k_norm: null, {rope}}}}}}}"
    assert not {"q_norm", "k_norm"} & {*names(graph(tmp_path, changed), "attention")}


def test_a_node_with_its_op_and_arithmetic_are_written_anew(tmp_path: Path) -> None:
    """Where they were merged, q_proj would keep its parameter, and the sum would be a product too."""
    changed = """
sizes: {kv_width: {sum: [$head_dim, 0]}}
blocks:
  attention:
    nodes:
      q_proj: {op: linear, in: [norm], weights: {weight: {name: q, shape: [$q_width, $hidden]}}}
"""
    (q_proj,) = (n for n in graph(tmp_path, changed).nodes if n.name == "layers[0].attention.q_proj")
    assert q_proj.params["heads"] is None
    assert q_proj.weights["weight"].names == ("model.layers.0.q",)


def test_a_file_of_the_users_own_is_extended(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE.read_text("utf-8"), "utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (tmp_path / "graph.yaml").write_text("kind: graph\nextends: ./base.yaml\nmodel_type: [qwen3_moe]\n", "utf-8")
    ours = expand(Config(tmp_path / "config.json"), tmp_path / "graph.yaml")
    assert {node.where.path for node in ours.nodes} == {tmp_path / "base.yaml"}
    assert reader.graph_files(tmp_path / "graph.yaml") == [tmp_path / "graph.yaml", tmp_path / "base.yaml"]


def test_a_mistake_names_the_file_and_line_that_it_stands_on(tmp_path: Path) -> None:
    line = 1 + BASE.read_text("utf-8").splitlines().index(
        "      rope: {op: rope, in: [q_norm, k_norm, rotary.cos, rotary.sin]}"
    )
    with pytest.raises(MoeparityError, match=f"{BASE.name}:{line}: no value 'q_norm' here"):
        graph(tmp_path, "blocks: {attention: {nodes: {q_norm: null}}}")
    with pytest.raises(MoeparityError, match=r"graph\.yaml:4: no value 'rooter' here"):
        graph(tmp_path, "blocks: {moe: {output: rooter}}")


@pytest.mark.parametrize("path", sorted(shipped("models").values()), ids=lambda path: path.stem)
def test_a_shipped_graph_is_read_in_two_files_at_most(path: Path) -> None:
    assert len(reader.graph_files(path)) <= 2
