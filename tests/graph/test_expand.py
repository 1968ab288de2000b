"""Graph file x config.json -> Graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeparity.graph.expand import expand
from moeparity.graph.graph import Graph
from tests.errors.base import BASE, shapes
from tests.graph.configs import DEEPSEEK_V3, QWEN3, QWEN3_MOE, config, graph


def tensors(of: Graph) -> dict[str, tuple[int, ...]]:
    return {name: ref.shape for node in of.nodes for ref in node.weights.values() for name in ref.names}


def names(of: Graph) -> list[str]:
    return [node.name for node in of.nodes]


def plain(of: Graph) -> list[tuple[Any, ...]]:
    """All of a graph except which lines it was written on."""
    return [
        (n.name, n.op.name, n.inputs, n.outputs, dict(n.params), n.layer, list(n.weights.items())) for n in of.nodes
    ]


def test_qwen3_moe_takes_exactly_the_tensors_of_the_hub(tmp_path: Path) -> None:
    expanded = graph(tmp_path, QWEN3_MOE)
    assert tensors(expanded) == shapes()
    assert len(expanded.nodes) == 2 + 2 * (10 + 6) + 2
    assert [segment.name for segment in expanded.segments] == ["before", "layers[0]", "layers[1]", "after"]
    assert (expanded.layers, expanded.output, expanded.model_type) == (2, "lm_head", "qwen3_moe")


def test_values_run_from_block_to_block(tmp_path: Path) -> None:
    nodes = {node.name: node for node in graph(tmp_path, QWEN3_MOE).nodes}
    assert nodes["layers[0].attention.norm"].inputs == ("embed",)
    assert nodes["layers[0].moe.norm"].inputs == ("layers[0].attention.residual",)
    assert nodes["layers[1].attention.norm"].inputs == ("layers[0].moe.residual",)
    assert nodes["norm"].inputs == ("layers[1].moe.residual",)
    assert nodes["layers[1].moe.combine"].inputs[1:] == ("layers[1].moe.router.ids", "layers[1].moe.router.weights")


def test_the_digraph_has_an_edge_for_every_value_read(tmp_path: Path) -> None:
    expanded = graph(tmp_path, QWEN3_MOE)
    assert set(names(expanded)) | {"tokens", "positions", "mask"} == set(expanded.digraph)
    assert expanded.digraph.has_edge("layers[0].moe.router", "layers[0].moe.combine")
    assert expanded.digraph.has_edge("tokens", "embed")


def test_dense_layers_where_the_config_says_so(tmp_path: Path) -> None:
    stepped = graph(tmp_path, QWEN3_MOE, num_hidden_layers=4, decoder_sparse_step=2, intermediate_size=24)
    assert [f"layers[{i}].moe.gate" in names(stepped) for i in range(4)] == [False, True, False, True]
    listed = graph(tmp_path, QWEN3_MOE, num_hidden_layers=3, mlp_only_layers=[1], intermediate_size=24)
    assert [f"layers[{i}].mlp.swiglu" in names(listed) for i in range(3)] == [False, True, False]
    first = graph(tmp_path, DEEPSEEK_V3, first_k_dense_replace=2)
    assert [f"layers[{i}].mlp.swiglu" in names(first) for i in range(3)] == [True, True, False]


def test_tied_embeddings(tmp_path: Path) -> None:
    tied = tensors(graph(tmp_path, QWEN3))
    assert "lm_head.weight" not in tied
    assert tied["model.embed_tokens.weight"] == (32, 16)
    assert "lm_head.weight" in tensors(graph(tmp_path, QWEN3, tie_word_embeddings=False))


def test_biases_only_where_the_config_has_them(tmp_path: Path) -> None:
    assert not any("bias" in name for name in tensors(graph(tmp_path, QWEN3_MOE)))
    biased = tensors(graph(tmp_path, QWEN3_MOE, attention_bias=True))
    assert {name: shape for name, shape in biased.items() if "bias" in name and ".0." in name} == {
        "model.layers.0.self_attn.q_proj.bias": (16,),
        "model.layers.0.self_attn.k_proj.bias": (8,),
        "model.layers.0.self_attn.v_proj.bias": (8,),
        "model.layers.0.self_attn.o_proj.bias": (16,),
    }


def test_low_rank_queries(tmp_path: Path) -> None:
    low = graph(tmp_path, DEEPSEEK_V3)
    nodes = {node.name: node for node in low.nodes}
    assert nodes["layers[0].attention.q_proj"].inputs == ("layers[0].attention.q_a_norm",)
    assert tensors(low)["model.layers.0.self_attn.q_b_proj.weight"] == (24, 6)


@pytest.mark.parametrize("rank", [None, 0, "absent"])
def test_full_rank_queries(tmp_path: Path, rank: int | str | None) -> None:
    fields = {key: value for key, value in DEEPSEEK_V3.items() if key != "q_lora_rank"}
    full = graph(tmp_path, fields) if rank == "absent" else graph(tmp_path, DEEPSEEK_V3, q_lora_rank=rank)
    nodes = {node.name: node for node in full.nodes}
    assert "layers[0].attention.q_a_proj" not in nodes
    assert nodes["layers[0].attention.q_proj"].inputs == ("layers[0].attention.norm",)
    assert tensors(full)["model.layers.0.self_attn.q_proj.weight"] == (24, 16)


def test_deepseek_splits_shared_experts_and_groups(tmp_path: Path) -> None:
    expanded = graph(tmp_path, DEEPSEEK_V3)
    nodes = {node.name: node for node in expanded.nodes}
    assert nodes["layers[1].attention.kv_split"].values == (
        "layers[1].attention.kv_split.latent",
        "layers[1].attention.kv_split.rope",
    )
    assert nodes["layers[1].attention.q_split"].params["parts"] == {"nope": 8, "rope": 4}
    router = nodes["layers[1].moe.router"]
    assert (router.params["groups"], router.params["top_groups"], router.params["scale"]) == (2, 1, 2.5)
    assert router.weights["bias"].keep_fp32
    assert tensors(expanded)["model.layers.1.mlp.shared_experts.down_proj.weight"] == (16, 16)


def test_derived_sizes_are_fallbacks(tmp_path: Path) -> None:
    without = {key: value for key, value in QWEN3_MOE.items() if key not in {"head_dim", "num_key_value_heads"}}
    assert tensors(graph(tmp_path, without))["model.layers.0.self_attn.k_proj.weight"] == (16, 16)


def test_both_generations_of_config_give_the_same_graph(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 16}
    old = {**QWEN3_MOE, "rope_scaling": {"type": "yarn", **yarn}}
    new = {key: value for key, value in QWEN3_MOE.items() if key not in {"torch_dtype", "rope_theta", "num_experts"}}
    new |= {"dtype": "bfloat16", "num_local_experts": 4}
    new |= {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **yarn}}
    assert plain(graph(tmp_path / "old", old)) == plain(graph(tmp_path / "new", new))
    assert config(tmp_path / "old", old).dtype == config(tmp_path / "new", new).dtype == "bf16"


def test_a_null_rope_scaling_is_the_default(tmp_path: Path) -> None:
    assert plain(graph(tmp_path, QWEN3_MOE, rope_scaling=None)) == plain(graph(tmp_path, QWEN3_MOE))


def test_a_graph_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    text = (BASE.parent / "graph-unknown-value.yaml").read_text("utf-8").replace("nrom", "norm")
    path.write_text(text, "utf-8")
    expanded = expand(config(tmp_path, QWEN3_MOE), path)
    assert names(expanded)[1:3] == ["layers[0].mixer.norm", "layers[0].mixer.residual"]
    assert expanded.nodes[1].where.line == 10
    assert expanded.path == path


def test_defaults_that_a_graph_does_not_read_are_not_held_against_a_checkpoint(tmp_path: Path) -> None:
    """DeepSeek's attention has no key-value heads, whatever its config.json says of them."""
    assert graph(tmp_path, DEEPSEEK_V3, num_key_value_heads=128).layers == 3
