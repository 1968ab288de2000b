"""Checkpoints as the hub has them where transformers saves others: a vision tower beside, experts in one stack, dtypes
that transformers does not keep. Live and bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import FILE, make_random
from tests.hf.compare import DTYPES, PROFILES, assert_is, opened, tokens
from tests.hf.reference import reference
from tests.small_models import SMALL

Tensors = Mapping[str, torch.Tensor]


def stacked(tensors: Tensors) -> dict[str, torch.Tensor]:
    """With gate and up of all experts of a layer in one tensor, and all its down projections."""
    of_experts = (".experts.", ".weight")
    whole = {name: tensor for name, tensor in tensors.items() if not all(part in name for part in of_experts)}
    for name in [name for name in tensors if name.endswith(".experts.0.gate_proj.weight")]:
        at = name.removesuffix("0.gate_proj.weight")
        count = sum(key.startswith(at) and key.endswith(".down_proj.weight") for key in tensors)
        of_each = {p: [tensors[f"{at}{e}.{p}_proj.weight"] for e in range(count)] for p in ("gate", "up", "down")}
        gate_up = [torch.cat(pair) for pair in zip(of_each["gate"], of_each["up"], strict=True)]
        whole |= {f"{at}gate_up_proj": torch.stack(gate_up), f"{at}down_proj": torch.stack(of_each["down"])}
    return whole


def beside_a_tower(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Under the names of a text model beside a vision tower, with a tensor of that and of the extra layers."""
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    return renamed | {"model.visual.merger.norm.weight": torch.ones(16), "mtp.fc.weight": torch.ones(64, 128)}


def written(folder: Path, fields: Mapping[str, Any], tensors: Tensors) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields), "utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / FILE, metadata={"format": "pt"})
    return folder


def of_the_hub(source: Path, folder: Path) -> Path:
    """Qwen3.5's layout: a wrapper's config.json, experts in stacks, A_log and the gated norm in fp32."""
    text = json.loads((source / "config.json").read_text("utf-8"))
    del text["architectures"]
    tensors = {
        name: tensor.float() if name.endswith(("linear_attn.A_log", "linear_attn.norm.weight")) else tensor
        for name, tensor in stacked(load_file(source / FILE)).items()
    }
    fields = {
        "model_type": "qwen3_5_moe",
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5_moe_vision", "depth": 1, "hidden_size": 16},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    return written(folder, fields, beside_a_tower(tensors))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_5_moe_mha"])
def test_qwen3_5_beside_its_vision_tower(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, profile: str, dtype: str
) -> None:
    saved: Path = request.getfixturevalue(name)
    folder, ids = of_the_hub(saved, tmp_path / "hub"), tokens(512, (2, 9))
    truth = reference(folder, profile, DTYPES[dtype], ids)
    assert_is(opened(folder), forward(folder, ids, profile=profile, dtype=dtype), truth)
    assert same_bits(reference(saved, profile, DTYPES[dtype], ids)[0], truth[0])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_moe", "deepseek_v3"])
def test_experts_in_stacks(request: pytest.FixtureRequest, tmp_path: Path, name: str, profile: str, dtype: str) -> None:
    """What transformers 5 saves of a model that was loaded from stacks, under the names that it has in memory."""
    saved: Path = request.getfixturevalue(name)
    fields = json.loads((saved / "config.json").read_text("utf-8"))
    folder, ids = written(tmp_path / "stacks", fields, stacked(load_file(saved / FILE))), tokens(512, (2, 9))
    truth = reference(folder, profile, DTYPES[dtype], ids)
    assert_is(opened(folder), forward(folder, ids, profile=profile, dtype=dtype), truth)


def test_a_stack_of_another_shape_is_refused(qwen3_5_moe: Path, tmp_path: Path) -> None:
    """Also one that is transposed: which axis is which would be a guess."""
    fields = json.loads((qwen3_5_moe / "config.json").read_text("utf-8"))
    tensors = {
        name: tensor.mT if name.endswith("gate_up_proj") else tensor
        for name, tensor in stacked(load_file(qwen3_5_moe / FILE)).items()
    }
    with pytest.raises(CheckpointError, match=r"experts\.0\.gate_proj\.weight' is missing"):
        open_model(written(tmp_path / "transposed", fields, tensors), device="cpu")


def test_rotary_dim_of_a_minimax(minimax_m2: Path, tmp_path: Path) -> None:
    fields = json.loads((minimax_m2 / "config.json").read_text("utf-8"))
    rope = fields.pop("rope_parameters")
    older = {**fields, "rotary_dim": 16, "rope_theta": rope["rope_theta"]}
    folder, ids = written(tmp_path / "older", older, load_file(minimax_m2 / FILE)), tokens(512, (2, 33))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, dtype="bf16"), truth)
    assert same_bits(reference(minimax_m2, "hf-eager", torch.bfloat16, ids)[0], truth[0])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_deepseek_v32_of_the_hub(deepseek_v32_yarn: Path, tmp_path: Path, profile: str) -> None:
    """In the fields of its config.json there, with an indexer in fp32 and the layer that predicts further tokens."""
    fields = json.loads((deepseek_v32_yarn / "config.json").read_text("utf-8"))
    rope = fields.pop("rope_parameters")
    dropped = {"layer_types", "mlp_layer_types", "dtype", "head_dim", "qk_head_dim"}
    older = {key: value for key, value in fields.items() if key not in dropped}
    older |= {"torch_dtype": "bfloat16", "rope_theta": rope.pop("rope_theta"), "num_nextn_predict_layers": 1}
    older |= {"rope_scaling": {"type": rope.pop("rope_type"), **rope}, "topk_method": "noaux_tc"}
    older |= {"scoring_func": "sigmoid", "moe_layer_freq": 1, "ep_size": 1}
    tensors = {
        name: tensor.float() if ".indexer.k_norm." in name or name.endswith("weights_proj.weight") else tensor
        for name, tensor in load_file(deepseek_v32_yarn / FILE).items()
    }
    tensors["model.layers.61.self_attn.indexer.wk.weight"] = torch.ones(24, 64)
    folder, ids = written(tmp_path / "hub", older, tensors), tokens(512, (2, 33))
    truth = reference(folder, profile, torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile=profile, dtype="bf16"), truth)
    assert same_bits(reference(deepseek_v32_yarn, profile, torch.bfloat16, ids)[0], truth[0])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_kimi_k25_of_the_hub(kimi_k25: Path, tmp_path: Path, profile: str) -> None:
    """Its layers are called `layers` there; transformers 5.23.0 saves those of text as `blocks`, like the tower's."""
    fields, tensors = json.loads((kimi_k25 / "config.json").read_text("utf-8")), load_file(kimi_k25 / FILE)
    saved, hub = "language_model.model.blocks.", "language_model.model.layers."
    assert any(name.startswith(saved) for name in tensors)
    renamed = {name.replace(saved, hub): tensor for name, tensor in tensors.items()}
    folder, ids = written(tmp_path / "hub", fields, renamed), tokens(512, (2, 33))
    truth = reference(folder, profile, torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile=profile, dtype="bf16"), truth)
    assert same_bits(reference(kimi_k25, profile, torch.bfloat16, ids)[0], truth[0])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_ling_of_the_hub(bailing_hybrid: Path, tmp_path: Path, profile: str) -> None:
    """In the fields of its config.json there alone."""
    fields = json.loads((bailing_hybrid / "config.json").read_text("utf-8"))
    width = fields["linear_head_dim"]
    further = {"linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads", "qk_head_dim", "rope_parameters"}
    older = {key: value for key, value in fields.items() if key not in further}
    older |= {"head_dim": width, "rope_theta": 1e4}
    folder, ids = written(tmp_path / "hub", older, load_file(bailing_hybrid / FILE)), tokens(512, (2, 33))
    truth = reference(folder, profile, torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile=profile, dtype="bf16"), truth)
    assert not same_bits(reference(bailing_hybrid, profile, torch.bfloat16, ids)[0], truth[0])


@pytest.mark.parametrize("name", ["mellum", "kolibri1", "cohere2_moe", "mimo_v2_flash", "glm_moe_dsa", "laguna"])
def test_experts_of_further_models_in_stacks(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    saved: Path = request.getfixturevalue(name)
    fields = json.loads((saved / "config.json").read_text("utf-8"))
    folder, ids = written(tmp_path / "stacks", fields, stacked(load_file(saved / FILE))), tokens(512, (2, 9))
    truth = reference(folder, "hf-default", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-default", dtype="bf16"), truth)


@pytest.mark.parametrize("name", ["dbrx", "dbrx_mha"])
def test_a_dbrx_of_the_hub(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """In the fields of its config.json there, of which transformers 5.23.0 passes over the base of the rope."""
    saved: Path = request.getfixturevalue(name)
    fields = json.loads((saved / "config.json").read_text("utf-8"))
    names = ("d_model", "n_heads", "n_layers", "max_seq_len", "vocab_size", "architectures")
    halves = {
        "attn_config": {"kv_n_heads", "clip_qkv", "rope_theta"},
        "ffn_config": {"ffn_hidden_size", "moe_num_experts", "moe_top_k", "moe_normalize_expert_weights"},
    }
    older = {key: fields[key] for key in names} | {"model_type": "dbrx", "torch_dtype": "bfloat16"}
    for half, words in halves.items():
        older[half] = {key: value for key, value in fields[half].items() if key in words} | {"model_type": ""}
    older["ffn_config"] |= {"moe_jitter_eps": 0.01, "moe_loss_weight": 0.05}
    older["attn_config"]["rope_theta"] = 500000
    folder, ids = written(tmp_path / "hub", older, load_file(saved / FILE)), tokens(512, (2, 33))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-eager", dtype="bf16"), truth)
    assert same_bits(reference(saved, "hf-eager", torch.bfloat16, ids)[0], truth[0])


def test_an_lfm2_of_the_hub(lfm2_moe: Path, tmp_path: Path) -> None:
    """In the fields of its config.json there, with the bias of its routers in fp32."""
    fields = json.loads((lfm2_moe / "config.json").read_text("utf-8"))
    dropped = {"rope_parameters", "dtype", "tie_word_embeddings"}
    older = {key: value for key, value in fields.items() if key not in dropped}
    older |= {"rope_theta": 1000000.0, "torch_dtype": "bfloat16", "tie_embedding": True, "conv_dim": 64}
    tensors = {
        name: tensor.float() + 1e-4 if name.endswith("expert_bias") else tensor
        for name, tensor in load_file(lfm2_moe / FILE).items()
    }
    folder, ids = written(tmp_path / "hub", older, tensors), tokens(512, (2, 33))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-eager", dtype="bf16"), truth)


def test_longrope_by_the_hubs_word(phimoe: Path, tmp_path: Path) -> None:
    fields = json.loads((phimoe / "config.json").read_text("utf-8"))
    rope = fields.pop("rope_parameters")
    older = {**fields, "rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    for width in (9, 33):
        folder, ids = written(tmp_path / f"older{width}", older, load_file(phimoe / FILE)), tokens(512, (2, width))
        truth = reference(folder, "hf-eager", torch.bfloat16, ids)
        assert_is(opened(folder), forward(folder, ids, dtype="bf16"), truth)
        assert same_bits(reference(phimoe, "hf-eager", torch.bfloat16, ids)[0], truth[0])


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_latent"])
def test_letters_of_a_nemotron_h(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """The hub's config.json: a letter for each block, older names, a number of layers that nobody reads; tensors of
    layers that predict several tokens.
    """
    saved: Path = request.getfixturevalue(name)
    fields = json.loads((saved / "config.json").read_text("utf-8"))
    letters = {"linear_attention": "M", "moe": "E", "full_attention": "*", "mlp": "-"}
    blocks = fields.pop("layers_block_type")
    older = {"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "chunk_size": "mamba_chunk_size"}
    older |= {"use_conv_bias": "mamba_conv_bias", "time_step_min": "mamba_dt_min"}
    renamed = {older.get(key, key): value for key, value in fields.items()}
    renamed |= {"hybrid_override_pattern": "".join(letters[block] for block in blocks), "num_hidden_layers": 52}
    tensors = load_file(saved / FILE)
    assert any(key.startswith("backbone.layers.") for key in tensors)
    folder = written(tmp_path / "hub", renamed, tensors | {"mtp.layers.0.norm.weight": torch.ones(64)})
    ids = tokens(512, (2, 9))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-eager", dtype="bf16"), truth)
    assert same_bits(reference(saved, "hf-eager", torch.bfloat16, ids)[0], truth[0])


def test_older_words_for_the_layers_of_a_granite(granitemoehybrid: Path, tmp_path: Path) -> None:
    """As ibm-granite's config.json has them, with no word on rope that transformers knows, and A_log in fp32."""
    fields = json.loads((granitemoehybrid / "config.json").read_text("utf-8"))
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    fields |= {"layer_types": [words[kind] for kind in fields["layer_types"]], "position_embedding_type": "nope"}
    fields["time_step_limit"] = [0.0, float("inf")]
    tensors = {
        name: tensor.float() if name.endswith("A_log") else tensor
        for name, tensor in load_file(granitemoehybrid / FILE).items()
    }
    folder, ids = written(tmp_path / "hub", fields, tensors), tokens(512, (2, 9))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-eager", dtype="bf16"), truth)
    assert same_bits(reference(granitemoehybrid, "hf-eager", torch.bfloat16, ids)[0], truth[0])


def test_a_granite_without_experts(tmp_path: Path) -> None:
    """Granite 4 H Micro: the shared expert is a dense MLP."""
    fields = {**SMALL["granitemoehybrid"], "num_local_experts": 0, "num_experts_per_tok": 0}
    folder, ids = make_random(fields, tmp_path / "dense"), tokens(512, (2, 9))
    for profile in PROFILES:
        truth = reference(folder, profile, torch.bfloat16, ids)
        assert_is(opened(folder), forward(folder, ids, profile=profile, dtype="bf16"), truth)


def test_the_rank_of_a_jamba_by_a_word(jamba: Path, tmp_path: Path) -> None:
    fields = json.loads((jamba / "config.json").read_text("utf-8"))
    folder = written(tmp_path / "hub", {**fields, "mamba_dt_rank": "auto"}, load_file(jamba / FILE))
    ids = tokens(512, (2, 9))
    truth = reference(folder, "hf-eager", torch.bfloat16, ids)
    assert_is(opened(folder), forward(folder, ids, profile="hf-eager", dtype="bf16"), truth)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("granitemoehybrid", "time_step_limit", [0.1, 1.0]),
        ("nemotron_h", "mlp_hidden_act", "silu"),
        ("jamba", "mamba_proj_bias", True),
        ("jamba", "use_mambapy", True),
    ],
)
def test_what_no_graph_of_state_spaces_computes_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, field: str, value: Any
) -> None:
    saved: Path = request.getfixturevalue(name)
    fields = json.loads((saved / "config.json").read_text("utf-8")) | {field: value}
    with pytest.raises(CheckpointError, match=rf"{field} is .*; {name}\.yaml computes only"):
        open_model(written(tmp_path / "other", fields, load_file(saved / FILE)), device="cpu")
