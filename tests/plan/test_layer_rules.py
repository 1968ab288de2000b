"""Which layers are sparse, which have a window, and which fields decide: rules of models that no other test has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from moeparity.documents.checked import shipped
from moeparity.errors import CheckpointError
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.layer_values import INDEXER_RULES, ROPE_RULES, WINDOW_RULES
from moeparity.plan.layers import LAYER_RULES


def config(folder: Path, **fields: Any) -> Config:
    (folder / "config.json").write_text(json.dumps({"model_type": "dots1", **fields}), "utf-8")
    return Config(folder / "config.json")


def kinds(rule: str, of: Config, layers: int = 4) -> str:
    """The first letter of each layer's kind."""
    return "".join(LAYER_RULES[rule](of, index)[0] for index in range(layers))


def windows(rule: str, of: Config, layers: int = 4) -> list[int | None]:
    return [WINDOW_RULES[rule](of, index) for index in range(layers)]


def test_dense_layers_by_a_list(tmp_path: Path) -> None:
    listed = ["sparse", "dense", "sparse", "dense"]
    assert kinds("mlp_layer_types", config(tmp_path, mlp_layer_types=listed)) == "sdsd"
    assert kinds("mlp_layer_types", config(tmp_path)) == "dsss"
    with pytest.raises(CheckpointError, match=r"mlp_layer_types gives layer 1 as 'moe'; expected dense or sparse"):
        kinds("mlp_layer_types", config(tmp_path, mlp_layer_types=["dense", "moe"]))
    with pytest.raises(CheckpointError, match="gives layer 1 as"):
        kinds("mlp_layer_types", config(tmp_path, mlp_layer_types=["dense"]))


def test_sparse_layers_of_an_ernie(tmp_path: Path) -> None:
    assert kinds("moe_layer_interval", config(tmp_path)) == "dsss"
    every = config(tmp_path, moe_layer_interval=2, moe_layer_start_index=0, moe_layer_end_index=2)
    assert kinds("moe_layer_interval", every, 6) == "dsdddd"
    with pytest.raises(CheckpointError, match="moe_layer_interval is 0; expected a whole number of at least 1"):
        config(tmp_path, moe_layer_interval=0)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        *(("dots1", "ssss"), ("deepseek_v2", "ssss"), ("glm4_moe", "dsss"), ("deepseek_v3", "ddds")),
        *(("exaone_moe", "dsss"), ("kimi_linear", "dsss"), ("axk1", "dsss")),
    ],
)
def test_dense_layers_in_front_of_a_config_that_is_silent(tmp_path: Path, model_type: str, expected: str) -> None:
    """As the default of each model's configuration in transformers."""
    assert kinds("first_k_dense_replace", config(tmp_path, model_type=model_type)) == expected


def test_windows_behind_the_first_layers(tmp_path: Path) -> None:
    rule = "sliding_from_max_window_layers"
    assert windows(rule, config(tmp_path, max_window_layers=2, sliding_window=5)) == [None, None, 5, 5]
    assert windows(rule, config(tmp_path, max_window_layers=2)) == [None, None, 4096, 4096]
    assert windows(rule, config(tmp_path, max_window_layers=0, sliding_window=None)) == [None] * 4
    listed = ["sliding_attention", "full_attention"]
    assert windows(rule, config(tmp_path, sliding_window=5, layer_types=listed), 2) == [5, None]


def test_dense_layers_by_a_list_or_their_number(tmp_path: Path) -> None:
    rule = "mlp_layer_types_or_first_k"
    listed = ["sparse", "dense", "sparse", "dense"]
    assert kinds(rule, config(tmp_path, mlp_layer_types=listed, first_k_dense_replace=3)) == "sdsd"
    assert kinds(rule, config(tmp_path, first_k_dense_replace=3)) == "ddds"
    assert kinds("num_dense_layers", config(tmp_path)) == "dsss"
    assert kinds("num_dense_layers", config(tmp_path, num_dense_layers=2)) == "ddss"
    assert kinds("num_dense_layers", config(tmp_path, num_dense_layers=0)) == "ssss"


@pytest.mark.parametrize(
    ("model_type", "field", "width"),
    [("exaone_moe", "sliding_window_pattern", 4096), ("afmoe", "global_attn_every_n_layers", 1024)],
)
def test_windows_in_all_but_every_nth_layer(tmp_path: Path, model_type: str, field: str, width: int) -> None:
    """As the default of each model's configuration in transformers, which fails too without a width, or at a word."""

    def of_fields(**fields: Any) -> list[int | None]:
        return windows("all_but_every_nth_layer", config(tmp_path, model_type=model_type, **fields))

    assert of_fields() == [width] * 3 + [None]
    assert of_fields(sliding_window=5, **{field: 2}) == [5, None, 5, None]
    listed = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    assert of_fields(sliding_window=5, layer_types=listed, **{field: "LLLG"}) == [None, 5, 5, None]
    with pytest.raises(CheckpointError, match=f"{field} is 'LLLG'; expected a whole number of at least 1, or layer_ty"):
        of_fields(**{field: "LLLG"})
    with pytest.raises(CheckpointError, match="sliding_window is null; expected a whole number of at least 1"):
        of_fields(sliding_window=None)


def test_layers_of_a_flint(tmp_path: Path) -> None:
    """As the defaults of its configuration in transformers: dense ones in front, and where windows are."""
    of = config(tmp_path, model_type="flint", num_hidden_layers=8, num_experts=4)
    assert kinds("decoder_sparse_step", of) == "ddss"
    assert (
        kinds("decoder_sparse_step", config(tmp_path, model_type="flint", num_experts=4, mlp_only_layers=[])) == "ssss"
    )
    rule = "all_but_every_fourth_and_ends"
    of = config(tmp_path, model_type="flint", num_hidden_layers=8)
    assert windows(rule, of, 8) == [None, None, 513, 513, 513, None, 513, None]
    listed = ["sliding_attention", "full_attention"]
    of = config(tmp_path, model_type="flint", num_hidden_layers=2, sliding_window=5, layer_types=listed)
    assert windows(rule, of, 2) == [5, None]


def test_kinds_of_layers_of_a_kimi_linear(tmp_path: Path) -> None:
    """The hub's own fields, which count layers from 1; transformers' own; and none."""
    hub = {
        "full_attn_layers": [2, 4],
        "kda_layers": [1, 3],
        "head_dim": 16,
        "num_heads": 3,
        "short_conv_kernel_size": 2,
    }
    of = config(tmp_path, model_type="kimi_linear", linear_attn_config=hub)
    rule = LAYER_RULES["kimi_linear_and_full"]
    kinds_of_hub = [rule(of, index) for index in range(4)]
    assert kinds_of_hub == ["linear_dense", "full_sparse", "linear_sparse", "full_sparse"]
    assert (of["linear_head_dim"], of["linear_num_heads"], of["linear_conv_kernel_dim"]) == (16, 3, 2)
    silent = config(tmp_path, model_type="kimi_linear")
    assert [rule(silent, index) for index in (0, 3, 4, 8)] == [
        "linear_dense",
        "linear_sparse",
        "full_sparse",
        "full_sparse",
    ]
    listed = config(tmp_path, model_type="kimi_linear", layer_types=["full_attention"], linear_attn_config=hub)
    assert rule(listed, 0) == "full_dense"
    with pytest.raises(CheckpointError, match="layer_types gives layer 4 as null"):
        rule(config(tmp_path, model_type="kimi_linear", linear_attn_config={**hub, "kda_layers": [1, 1, 3]}), 4)


def test_kinds_of_layers_of_a_ling(tmp_path: Path) -> None:
    """By group where `layer_types` says nothing, as the hub's config.json does not; the first two are dense."""
    rule = LAYER_RULES["ling_linear_and_full"]
    of = config(tmp_path, model_type="bailing_hybrid", layer_group_size=3)
    kinds = [rule(of, index) for index in range(6)]
    assert kinds == ["linear_dense", "linear_dense", "full_sparse", "linear_sparse", "linear_sparse", "full_sparse"]
    silent = config(tmp_path, model_type="bailing_hybrid")
    assert [rule(silent, index) for index in (4, 5, 6, 11)] == ["linear_sparse", "full_sparse"] * 2
    listed = config(tmp_path, model_type="bailing_hybrid", layer_types=["full_attention"], mlp_layer_types=["sparse"])
    assert rule(listed, 0) == "full_sparse"


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy", None])
def test_groups_of_experts_where_the_method_says_so(tmp_path: Path, method: str | None) -> None:
    """`{is: [$topk_method, group_limited_greedy]}` in the graph of DeepSeek-V2."""
    fields = json.loads(shipped("configs", "json")["deepseek_v2"].read_text("utf-8"))
    routers = [n for n in expand(config(tmp_path, **{**fields, "topk_method": method})).nodes if n.op.name == "router"]
    assert {n.params["groups"] for n in routers} == {8 if method == "group_limited_greedy" else 1}


def test_a_text_model_beside_a_vision_tower(tmp_path: Path) -> None:
    text = json.loads(shipped("configs", "json")["qwen3_5_moe_text"].read_text("utf-8"))
    whole = {"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {"hidden_size": 7}}
    (tmp_path / "config.json").write_text(json.dumps(whole), "utf-8")
    opened = Config(tmp_path / "config.json")
    assert (opened.model_type, opened["hidden_size"]) == ("qwen3_5_moe_text", text["hidden_size"])
    assert "vision_config" not in opened


def ropes(rule: str, of: Config, layers: int = 4) -> list[Any]:
    """The base of each layer's rope, None for none."""
    of_layers = (ROPE_RULES[rule](of, index) for index in range(layers))
    return [None if rope is None else rope["rope_theta"] for rope in of_layers]


KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("model_type", "rule"), [("mellum", "layer_types"), ("mimo_v2_flash", "all_but_first_and_every_sixth")]
)
def test_a_rope_for_each_kind_of_layer(tmp_path: Path, model_type: str, rule: str) -> None:
    """As the defaults in transformers, which reads no older fields, and fails where a kind has no rope."""
    of = config(tmp_path, model_type=model_type, layer_types=KINDS, sliding_window=5, rope_theta=7.0)
    assert windows(rule, of) == [None, 5, 5, None]
    theirs = AutoConfig.for_model(model_type).rope_parameters
    full, window = (theirs[kind]["rope_theta"] for kind in ("full_attention", "sliding_attention"))
    assert ropes("rope_of_layer_type", of) == [full, window, window, full]
    one_kind = {"full_attention": {"rope_theta": 5.0}}
    with pytest.raises(CheckpointError, match="rope_parameters has no 'sliding_attention', which layer 1 is"):
        ropes(
            "rope_of_layer_type", config(tmp_path, model_type=model_type, layer_types=KINDS, rope_parameters=one_kind)
        )
    with pytest.raises(CheckpointError, match="rope_parameters is 'default'; expected an object"):
        config(tmp_path, model_type=model_type, rope_parameters={"full_attention": "default"})
    with pytest.raises(CheckpointError, match="rope_type default needs 'rope_theta'"):
        config(tmp_path, model_type=model_type, rope_parameters={"full_attention": {}})
    with pytest.raises(CheckpointError, match="rope_theta is 1; expected a number above 1"):
        config(tmp_path, model_type=model_type, rope_parameters={"full_attention": {"rope_theta": 1}})


def test_a_part_of_a_head_that_transformers_cannot_turn(tmp_path: Path) -> None:
    rope = {"full_attention": {"rope_theta": 5.0, "partial_rotary_factor": 0.5}}
    with pytest.raises(CheckpointError, match=r"partial_rotary_factor is 0.5; expected 1"):
        ropes("rope_of_layer_type", config(tmp_path, model_type="mellum", rope_parameters=rope))


def test_layers_of_a_mimo(tmp_path: Path) -> None:
    of = config(tmp_path, model_type="mimo_v2_flash")
    assert of["attention_value_scale"] == AutoConfig.for_model("mimo_v2_flash").attention_value_scale
    assert config(tmp_path, model_type="mimo_v2_flash", attention_value_scale=None)["attention_value_scale"] is None
    rule = "all_but_first_and_every_sixth"
    assert windows(rule, of, 7) == [None, 129, 129, 129, 129, None, 129]
    assert windows(rule, config(tmp_path, model_type="mimo_v2_flash", sliding_window_size=8, sliding_window=5), 2) == [
        None,
        9,
    ]
    with pytest.raises(CheckpointError, match="sliding_window_size is -1; expected a whole number of at least 0"):
        windows(rule, config(tmp_path, model_type="mimo_v2_flash", sliding_window_size=-1), 2)


def test_layers_of_a_cohere(tmp_path: Path) -> None:
    """As its configuration in transformers makes them of older fields: a prefix of dense layers counts by itself."""
    fields = {"first_k_dense_replace": 2, "sliding_window_pattern": 3, "num_hidden_layers": 6, "num_experts": 4}
    theirs = AutoConfig.for_model("cohere2_moe", **fields)
    of = config(tmp_path, model_type="cohere2_moe", **fields)
    assert kinds("mlp_layer_types_or_prefix", of, 6) == "".join(word[0] for word in theirs.mlp_layer_types)
    windows_of = windows("windows_behind_a_prefix", of, 6)
    assert [w is None for w in windows_of] == [word == "full_attention" for word in theirs.layer_types]
    assert ropes("rope_of_windows_and_dense", of, 6) == [10000.0] * 4 + [None, 10000.0]
    of = config(tmp_path, model_type="cohere2_moe", prefix_dense_sliding_window_pattern=2, **fields)
    assert ropes("rope_of_windows_and_dense", of, 6) == [10000.0, None, 10000.0, 10000.0, None, 10000.0]
    with pytest.raises(CheckpointError, match="sliding_window_pattern is 0; expected a whole number of at least 1"):
        windows("windows_behind_a_prefix", config(tmp_path, model_type="cohere2_moe", sliding_window_pattern=0))


def test_layers_of_a_granite_with_windows(tmp_path: Path) -> None:
    of = config(tmp_path, model_type="granitemoe_swa", layer_rope_theta=[5.0, 0, 7, 9], rope_theta=3.0)
    assert windows("all_but_every_fourth", of, 5) == [None, 128, 128, 128, None]
    assert ropes("layer_rope_theta", of) == [5.0, None, 7, 9]
    assert ropes("layer_rope_theta", config(tmp_path, model_type="granitemoe_swa", rope_theta=3.0), 2) == [3.0, 3.0]
    for bases in ([5.0], [5.0, "none"], [5.0, 0.5]):
        with pytest.raises(CheckpointError, match="layer_rope_theta gives layer 1 as"):
            ropes("layer_rope_theta", config(tmp_path, model_type="granitemoe_swa", layer_rope_theta=bases))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"index_topk_freq": 3},
        {"index_topk_freq": 2, "index_skip_topk_offset": 4},
        {"index_topk_pattern": "FSSFSS"},
        {"index_topk_pattern": ["full", "shared", "full", "full", "shared", "full"], "index_topk_freq": 9},
        {"indexer_types": ["full", "full", "shared", "shared", "shared", "full"], "index_topk_pattern": "FSSFSS"},
    ],
)
def test_which_layers_of_a_glm_have_an_indexer(tmp_path: Path, fields: dict[str, Any]) -> None:
    """As its configuration in transformers says."""
    theirs = AutoConfig.for_model("glm_moe_dsa", num_hidden_layers=6, **fields).indexer_types
    of = config(tmp_path, model_type="glm_moe_dsa", **fields)
    assert [INDEXER_RULES["indexer_types"](of, i) for i in range(6)] == [word == "full" for word in theirs]


def test_indexers_that_cannot_be(tmp_path: Path) -> None:
    rule = INDEXER_RULES["indexer_types"]
    with pytest.raises(CheckpointError, match="index_topk_pattern gives layer 1 as 'X'; expected full or shared"):
        rule(config(tmp_path, index_topk_pattern="FX"), 1)
    with pytest.raises(CheckpointError, match="the first layer has no indexer, and none is before it"):
        rule(config(tmp_path, indexer_types=["shared"]), 0)


def test_layers_of_a_kolibri(tmp_path: Path) -> None:
    """Whose period is no field: another model's word is not read."""
    rule = "all_but_every_nth_layer"
    of = config(tmp_path, model_type="kolibri1", sliding_window_pattern=2)
    assert windows(rule, of, 6) == [513] * 4 + [None, 513]
    assert windows(rule, config(tmp_path, model_type="kolibri1", layer_types=KINDS, sliding_window=5)) == [
        None,
        5,
        5,
        None,
    ]
    assert kinds("mlp_layer_types_or_all_sparse", of) == "ssss"


def test_layers_of_models_with_state_spaces(tmp_path: Path) -> None:
    granite = LAYER_RULES["granite_hybrid"]
    older = config(tmp_path, model_type="granitemoehybrid", layer_types=["mamba", "attention"], num_local_experts=0)
    assert [granite(older, index) for index in range(2)] == ["linear_dense", "full_dense"]
    assert granite(config(tmp_path, model_type="granitemoehybrid"), 3) == "linear_sparse"
    nemotron = LAYER_RULES["nemotron_blocks"]
    of_hub = config(tmp_path, model_type="nemotron_h", hybrid_override_pattern="M*E-", num_hidden_layers=52)
    assert of_hub["num_hidden_layers"] == 4
    assert [nemotron(of_hub, index) for index in range(4)] == ["linear", "full", "moe", "mlp"]
    silent = config(tmp_path, model_type="nemotron_h")
    assert [nemotron(silent, index) for index in range(4)] == ["linear", "moe", "full", "mlp"]
    with pytest.raises(CheckpointError, match=r"layer_types gives layer 1 as 'X'; expected linear_attention or mamba"):
        nemotron(config(tmp_path, model_type="nemotron_h", hybrid_override_pattern="MX"), 1)
    jamba = LAYER_RULES["jamba_periods"]
    silent = config(tmp_path, model_type="jamba")
    assert [jamba(silent, index) for index in (0, 1, 4, 5)] == [
        "linear_dense",
        "linear_sparse",
        "full_dense",
        "linear_sparse",
    ]
    periods = {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 1, "expert_layer_offset": 0}
    of = config(tmp_path, model_type="jamba", **periods)
    assert [jamba(of, index) for index in range(3)] == ["linear_sparse", "full_sparse", "linear_sparse"]
    assert jamba(config(tmp_path, model_type="jamba", num_experts=1), 1) == "linear_dense"
    with pytest.raises(CheckpointError, match="attn_layer_period is 0; expected a whole number of at least 1"):
        config(tmp_path, model_type="jamba", attn_layer_period=0)


def test_layers_of_a_llama_4(tmp_path: Path) -> None:
    """Where config.json is silent every layer has experts, and every fourth no rope and no chunks."""

    def of(**fields: Any) -> Config:
        return config(tmp_path, **{"model_type": "llama4_text", "rope_theta": 3.0, **fields})

    def kinds_and_windows(config: Config) -> tuple[str, list[int | None]]:
        return kinds("moe_layers", config, 2), windows("attention_chunks", config, 2)

    assert kinds("moe_layers", of()) == "ssss"
    assert kinds("moe_layers", of(interleave_moe_layer_step=2)) == "dsds"
    assert kinds("moe_layers", of(moe_layers=[0, 3])) == "sdds"
    assert windows("attention_chunks", of()) == [8192, 8192, 8192, None]
    assert ropes("no_rope_layers", of()) == [3.0, 3.0, 3.0, None]
    odd = of(no_rope_layers=[1, 0, 0, 1], attention_chunk_size=5)
    assert (windows("attention_chunks", odd), ropes("no_rope_layers", odd)) == (
        [5, None, None, 5],
        [3.0, None, None, 3.0],
    )
    listed = of(layer_types=["full_attention", "chunked_attention"], no_rope_layers=[1, 0])
    assert windows("attention_chunks", listed, 2) == [None, 8192]
    for fields, message in (
        ({"moe_layers": "all"}, "moe_layers is 'all'; expected a list of layer numbers"),
        ({"attention_chunk_size": None}, "attention_chunk_size is null; expected a whole number of at least 1"),
        ({"no_rope_layers": [1, 2]}, "no_rope_layers gives layer 1 as 2; expected 1 for a layer with a rope, or 0"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0; expected a whole number of at least 1"),
    ):
        with pytest.raises(CheckpointError, match=message):
            kinds_and_windows(of(**fields))
