"""Graph file x config.json -> Graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.spec import reader
from moeparity.plan.spec.graph_schema import GraphFile
from tests.errors.base import BASE, shapes
from tests.plan.configs import (
    DEEPSEEK_V3,
    GLM4_MOE,
    GPT_OSS,
    LLAMA,
    MIXTRAL,
    OLMOE,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    config,
    graph,
)


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
    assert len(expanded.nodes) == 2 + 2 * (12 + 7) + 3
    assert [segment.name for segment in expanded.segments] == ["before", "layers[0]", "layers[1]", "after"]
    assert (expanded.layers, expanded.output, expanded.model_type) == (2, "lm_head", "qwen3_moe")
    assert (expanded.scores, expanded.nodes[-1].op.name) == ("log_probs", "log_probs")


def test_one_shipped_graph_is_read_of_ten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, paths = reader.read_graph, list[str]()

    def counted(path: Path) -> GraphFile:
        paths.append(path.stem)
        return read(path)

    monkeypatch.setattr(reader, "read_graph", counted)
    assert graph(tmp_path, QWEN3_MOE).model_type == "qwen3_moe"
    assert paths == ["qwen3_moe"]


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
    with_list = graph(tmp_path, QWEN3_MOE, num_hidden_layers=3, mlp_only_layers=[1], intermediate_size=24)
    assert [f"layers[{i}].mlp.swiglu" in names(with_list) for i in range(3)] == [False, True, False]
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
    v4 = {**QWEN3_MOE, "rope_scaling": {"type": "yarn", **yarn}}
    v5 = {key: value for key, value in QWEN3_MOE.items() if key not in {"torch_dtype", "rope_theta", "num_experts"}}
    v5 |= {"dtype": "bfloat16", "num_local_experts": 4}
    v5 |= {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **yarn}}
    assert plain(graph(tmp_path / "old", v4)) == plain(graph(tmp_path / "new", v5))
    assert config(tmp_path / "old", v4).dtype == config(tmp_path / "new", v5).dtype == "bf16"


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


def biases(of: Graph) -> set[str]:
    return {
        name.removeprefix("model.layers.1.")
        for name in tensors(of)
        if name.startswith("model.layers.1.") and "bias" in name
    }


def test_where_each_model_has_biases(tmp_path: Path) -> None:
    qkv = {f"self_attn.{name}_proj.bias" for name in "qkv"}
    attention = qkv | {"self_attn.o_proj.bias"}
    mlp = {f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")}
    assert biases(graph(tmp_path, QWEN2)) == qkv
    assert biases(graph(tmp_path, QWEN2_MOE)) == qkv
    assert biases(graph(tmp_path, QWEN2_MOE, qkv_bias=False)) == set()
    assert biases(graph(tmp_path, LLAMA)) == set()
    assert biases(graph(tmp_path, LLAMA, attention_bias=True, mlp_bias=True)) == attention | mlp
    assert biases(graph(tmp_path, OLMOE, attention_bias=True)) == attention
    assert biases(graph(tmp_path, GLM4_MOE, attention_bias=True)) == qkv | {"mlp.gate.e_score_correction_bias"}


def test_expert_names_of_the_hub(tmp_path: Path) -> None:
    mixtral = tensors(graph(tmp_path, MIXTRAL))
    at = "model.layers.1.block_sparse_moe."
    assert mixtral[at + "gate.weight"] == (4, 16)
    assert [mixtral[f"{at}experts.3.{name}.weight"] for name in ("w1", "w2", "w3")] == [(24, 16), (16, 24), (24, 16)]
    weights = {n.name: n.weights for n in graph(tmp_path, MIXTRAL).nodes}["layers[1].moe.experts"]
    assert [weights[port].names[3].split(".")[-2] for port in ("gate", "up", "down")] == ["w1", "w3", "w2"]
    shared = tensors(graph(tmp_path, QWEN2_MOE))
    assert shared["model.layers.0.mlp.shared_expert_gate.weight"] == (1, 16)
    assert shared["model.layers.0.mlp.shared_expert.down_proj.weight"] == (16, 10)
    assert tensors(graph(tmp_path, GLM4_MOE))["model.layers.1.mlp.shared_experts.up_proj.weight"] == (16, 16)


def test_norms_of_queries_and_keys(tmp_path: Path) -> None:
    olmoe = tensors(graph(tmp_path, OLMOE))
    assert (olmoe["model.layers.0.self_attn.q_norm.weight"], olmoe["model.layers.0.self_attn.k_norm.weight"]) == (
        (16,),
        (8,),
    )
    per_head = tensors(graph(tmp_path, GLM4_MOE))
    assert per_head["model.layers.0.self_attn.k_norm.weight"] == (8,)
    assert not any("q_norm" in name for name in tensors(graph(tmp_path, GLM4_MOE, use_qk_norm=False)))


def test_clipping_only_where_there_is_a_limit(tmp_path: Path) -> None:
    clipped = {node.name: node for node in graph(tmp_path, OLMOE, clip_qkv=8).nodes}
    assert clipped["layers[0].attention.v_clip"].params["limit"] == 8.0
    assert clipped["layers[0].attention.cache"].inputs[1] == "layers[0].attention.v_clip"
    assert not any("clip" in name for name in names(graph(tmp_path, OLMOE, clip_qkv=None)))


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, 4),
        ({"partial_rotary_factor": 0.75}, 6),
        ({"partial_rotary_factor": 1}, 8),
        ({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}}, 2),
        ({"rope_parameters": {"rope_theta": 10000.0}}, 4),
    ],
)
def test_part_of_a_head_is_turned(tmp_path: Path, fields: dict[str, Any], width: int) -> None:
    assert graph(tmp_path, GLM4_MOE, **fields).nodes[0].params["dim"] == width
    without = {key: value for key, value in GLM4_MOE.items() if key != "partial_rotary_factor"}
    assert graph(tmp_path, without).nodes[0].params["dim"] == 4


ON = {"use_sliding_window": True, "sliding_window": 7}
TYPES = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("model", "fields", "windows"),
    [
        (MIXTRAL, {}, [None] * 4),
        (MIXTRAL, {"sliding_window": None}, [None] * 4),
        (MIXTRAL, {"sliding_window": 7}, [7] * 4),
        (QWEN3_MOE, {"sliding_window": 7}, [None] * 4),
        (QWEN3_MOE, ON, [7] * 4),
        (QWEN3_MOE, {"use_sliding_window": True}, [4096] * 4),
        (QWEN3_MOE, {**ON, "sliding_window": None}, [None] * 4),
        (QWEN2, {"sliding_window": 7, "max_window_layers": 1}, [None] * 4),
        (QWEN2, {**ON, "max_window_layers": 1}, [None, 7, 7, 7]),
        (QWEN2, {**ON, "max_window_layers": 28}, [None] * 4),
        (QWEN2, {**ON, "max_window_layers": 0, "layer_types": TYPES}, [None, 7, None, 7]),
        (QWEN3, {**ON, "max_window_layers": 2}, [None, None, 7, 7]),
        (QWEN3, {**ON, "sliding_window": None, "max_window_layers": 0}, [None] * 4),
        (QWEN2_MOE, {**ON, "max_window_layers": 3}, [7, None, 7, None]),
        (QWEN2_MOE, {**ON, "max_window_layers": 2}, [7, None, None, None]),
        (QWEN2_MOE, {"use_sliding_window": False, "sliding_window": 0}, [None] * 4),
        (QWEN2_MOE, {**ON, "layer_types": TYPES}, [None, 7, None, 7]),
        (GPT_OSS, {}, [128, None, 128, None]),
        (GPT_OSS, {"sliding_window": 7}, [7, None, 7, None]),
        (GPT_OSS, {"sliding_window": 7, "layer_types": TYPES}, [None, 7, None, 7]),
    ],
)
def test_windows(tmp_path: Path, model: dict[str, Any], fields: dict[str, Any], windows: list[int | None]) -> None:
    """Each also as transformers' own configuration says it: its mask per layer."""
    expanded = graph(tmp_path, model, num_hidden_layers=4, **fields)
    assert [node.params["window"] for node in expanded.nodes if node.op.name == "attention"] == windows
    theirs = AutoConfig.for_model(**{**model, "num_hidden_layers": 4, **fields})
    types = getattr(theirs, "layer_types", ["sliding_attention" if theirs.sliding_window else "full_attention"] * 4)
    assert [theirs.sliding_window if kind == "sliding_attention" else None for kind in types] == windows


def test_the_older_name_of_the_rope_fields_wins(tmp_path: Path) -> None:
    names = {"rope_parameters": {"rope_theta": 5.0e5}, "rope_scaling": {"type": "linear", "factor": 2.0}}
    rope = graph(tmp_path, LLAMA, **names).nodes[0].params["rope"]
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 2.0, 10000.0)
    theirs = AutoConfig.for_model(**{**LLAMA, **names}).rope_parameters
    assert (theirs["rope_type"], theirs["factor"], theirs["rope_theta"]) == ("linear", 2.0, 10000.0)


def test_theta_where_none_is_given(tmp_path: Path) -> None:
    for fields, theta in ((LLAMA, 1e4), (MIXTRAL, 1e6)):
        without = {key: value for key, value in fields.items() if key != "rope_theta"}
        assert graph(tmp_path, without).nodes[0].params["rope"]["rope_theta"] == theta


def test_the_rope_of_a_gpt_oss_that_names_none(tmp_path: Path) -> None:
    rope = graph(tmp_path, GPT_OSS).nodes[0].params["rope"]
    theirs = AutoConfig.for_model(**GPT_OSS).rope_parameters
    assert rope == theirs
    assert (rope["rope_type"], rope["truncate"], rope["rope_theta"]) == ("yarn", False, 150000.0)


def test_experts_stacked_in_one_tensor(tmp_path: Path) -> None:
    (experts, *_) = [node for node in graph(tmp_path, GPT_OSS).nodes if node.op.name == "experts"]
    at, e = "model.layers.0.mlp.experts.", GPT_OSS["num_experts"]
    hidden, width = GPT_OSS["hidden_size"], GPT_OSS["intermediate_size"]
    assert {port: (ref.names, ref.shape, ref.stored, ref.count) for port, ref in experts.weights.items()} == {
        "gate": ((at + "gate_up_proj",), (width, hidden), (e, hidden, 2 * width), e),
        "up": ((at + "gate_up_proj",), (width, hidden), (e, hidden, 2 * width), e),
        "down": ((at + "down_proj",), (hidden, width), (e, width, hidden), e),
        "gate_bias": ((at + "gate_up_proj_bias",), (width,), (e, 2 * width), e),
        "up_bias": ((at + "gate_up_proj_bias",), (width,), (e, 2 * width), e),
        "down_bias": ((at + "down_proj_bias",), (hidden,), (e, hidden), e),
    }
