"""Decisions of engines and launchers that were read wrongly before, each held to its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity.profiles.launch import read
from moeparity.profiles.launch.report import Launch

VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B "
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def launch(folder: Path, text: str, name: str = "launch.sh") -> Launch:
    (folder / name).write_text(text, "utf-8")
    return read(folder / name)


NODES = "[deployment]\ntype = 'multi_node'"
LLMD = "[deployment]\ntype = 'disaggregated'\nprefill_nodes_per_replica = 2\ndecode_nodes_per_replica = %d\n"


@pytest.mark.parametrize(
    ("text", "placement", "warns"),
    [
        # The program `inference` alone, then within a run of `rl`; tokens are made on so many nodes of 8 GPUs.
        (f"{LLMD % 8}[vllm]\nmodel = 'm'\n", {"expert": 64}, "of 16 replicas"),
        (f"{LLMD % 1}[vllm]\nmodel = 'm'\ntensor_parallel_size = 4\n", {"tensor": 4, "expert": 8}, "of 4 replicas"),
        (f"{LLMD % 1}gpus_per_node = 4\n[vllm]\nmodel = 'm'\n", {"expert": 4}, "of 8 replicas"),
        (
            (
                f"[trainer.model]\nimpl = 'hf'\n{NODES}\n{LLMD.replace('[', '[inference.') % 4}"
                "[inference.vllm]\nenable_expert_parallel = true\n"
            ),
            *({"expert": 32}, "of 16 replicas"),
        ),
        # Experts lie on all nodes of a server where they are whole; else each engine is one of its own.
        (
            (
                "[deployment]\ntype = 'multi_node'\n[inference.vllm]\ntensor_parallel_size = 2\n"
                "enable_expert_parallel = true\ndata_parallel_size = 16\n"
            ),
            *({"tensor": 2, "expert": 8}, ""),
        ),
        (
            f"{NODES}\nnum_infer_nodes=2\n[inference.vllm]\ntensor_parallel_size=2\nenable_expert_parallel=true\n",
            *({"tensor": 2, "expert": 16}, ""),
        ),
        (
            "[deployment]\ntype = 'multi_node'\nnum_infer_nodes = 2\n[inference.vllm]\ntensor_parallel_size = 2\n",
            *({"tensor": 2}, ""),
        ),
    ],
)
def test_servers_of_prime_rl_over_nodes(tmp_path: Path, text: str, placement: dict[str, int], warns: str) -> None:
    launch_read = launch(tmp_path, text, "rl.toml")
    assert launch_read.engine == "prime-rl"
    rollout = launch_read.sides[1]
    groups = max(placement.get("expert", 1) // placement.get("tensor", 1), 1)
    apart = {"attention": groups, "gathered": "experts"} if groups > 1 else {}
    assert rollout.placement == {**placement, **apart}
    assert ("deepep-low-latency" in (rollout.profile, *rollout.further)) == bool(warns)
    assert warns in " ".join(warning.says for warning in launch_read.warnings)


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        ("torchrun pretrain_gpt.py --bf16 --tensor-model-parallel-size 2 --num-layers 2", "--"),
        ("python train.py --hf-checkpoint m --rollout-batch-size 4", "--"),
        ("python train.py --hf-checkpoint m --rollout-batch-size 4 --use-miles-router", "--"),
        (f"{VERL} model_engine=megatron", f"+{ACTOR}megatron.override_transformer_config."),
        ("python run.py policy.megatron_cfg.enabled=true", "policy.megatron_cfg."),
    ],
)
@pytest.mark.parametrize(
    ("fields", "warns"),
    [
        ({"rope_theta": 1000000.0}, False),
        ({"rope_theta": 10000}, True),
        ({"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}}, False),
        ({"text_config": {"rope_theta": 5000000}}, True),
        ({}, False),
    ],
)
def test_a_rotary_base_warns_where_it_is_not_the_model_s(
    tmp_path: Path, command: str, prefix: str, fields: dict[str, Any], warns: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "hidden_size": 64, **fields}), "utf-8")
    option = f"{prefix}rotary-base 1000000" if prefix == "--" else f"{prefix}rotary_base=1000000"
    (tmp_path / "run.sh").write_text(f"{command} {option}\n", "utf-8")
    launch_read = read(tmp_path / "run.sh", model)
    assert any(warning.value == "rotary_base 1e+06" for warning in launch_read.warnings) is warns
    assert any(setting.name.endswith("rotary_base") and setting.given for setting in launch_read.settings)
    assert not [warning for warning in launch_read.warnings if warning.name.endswith("rotary_base")]


HYBRID = "moe-flex-dispatcher-backend hybridep"


@pytest.mark.parametrize(
    "text",
    [
        f"torchrun pretrain_gpt.py --bf16 --moe-token-dispatcher-type flex --{HYBRID} --expert-model-parallel-size 8",
        (
            "python train.py --hf-checkpoint m --rollout-batch-size 4 --moe-token-dispatcher-type flex "
            f"--{HYBRID} --expert-model-parallel-size 8"
        ),
        (
            f"{VERL} model_engine=megatron {ACTOR}megatron.expert_model_parallel_size=8 "
            f"+{ACTOR}megatron.override_transformer_config.moe_token_dispatcher_type=flex "
            f"+{ACTOR}megatron.override_transformer_config.moe_flex_dispatcher_backend=hybridep"
        ),
        (
            "python -m skyrl.train.entrypoints.main_base trainer.strategy=megatron "
            "trainer.policy.megatron_config.expert_model_parallel_size=8 "
            "trainer.policy.megatron_config.moe_token_dispatcher_type=flex "
            "trainer.policy.megatron_config.transformer_config_kwargs.moe_flex_dispatcher_backend=hybridep"
        ),
        (
            "python run.py policy.megatron_cfg.enabled=true policy.megatron_cfg.expert_model_parallel_size=8 "
            "policy.megatron_cfg.moe_token_dispatcher_type=flex "
            "policy.megatron_cfg.moe_flex_dispatcher_backend=hybridep"
        ),
    ],
)
@pytest.mark.parametrize("backend", ["hybridep", "deepep"])
def test_which_backend_sends_the_rows_of_the_flex_dispatcher(tmp_path: Path, text: str, backend: str) -> None:
    launch_read = launch(tmp_path, text.replace("hybridep", backend))
    trainer = launch_read.sides[0]
    assert ("deepep-normal" in (trainer.profile, *trainer.further)) == (backend == "deepep")
    warned = any("hybridep adds rows and ranks over 8 ranks" in warning.says for warning in launch_read.warnings)
    assert warned == (backend == "hybridep")


@pytest.mark.parametrize(
    ("prefix", "options", "profile"),
    [
        ("VLLM_BATCH_INVARIANT=1", "", "vllm-batch-invariant-eager"),
        ("VLLM_BATCH_INVARIANT=1", "--quantization fp8", "vllm-batch-invariant"),
        ("VLLM_BATCH_INVARIANT=1", "-q fp8", "vllm-batch-invariant"),
        ("VLLM_BATCH_INVARIANT=1", "--quantization none", "vllm-batch-invariant-eager"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=1", "", "vllm-eager"),
        # Only "1" is on, and whatever is set leaves it to nobody else.
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=true", "", "vllm"),
        ("VLLM_USE_BREAKABLE_CUDAGRAPH=true VLLM_BATCH_INVARIANT=1", "", "vllm-batch-invariant"),
    ],
)
def test_when_vllm_breaks_its_graphs_up(tmp_path: Path, prefix: str, options: str, profile: str) -> None:
    side = launch(tmp_path, f"{prefix} vllm serve Qwen/Qwen3-30B-A3B {options}").sides[0]
    assert side.profile == profile


def test_quantised_rollouts_of_trainers_are_compiled(tmp_path: Path) -> None:
    command = f"VLLM_BATCH_INVARIANT=1 {VERL} actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B"
    for more, profile in (("", "vllm-batch-invariant-eager"), (f"{ROLLOUT}quantization=fp8", "vllm-batch-invariant")):
        assert launch(tmp_path, f"{command} {more}").sides[1].profile == profile
    text = "policy: {model_name: Qwen/Qwen3-30B-A3B, generation: {vllm_cfg: {precision: %s, env_vars: {%s}}}}"
    for precision, profile in (("bfloat16", "vllm-batch-invariant-eager"), ("fp8", "vllm-batch-invariant")):
        file = text % (precision, "VLLM_BATCH_INVARIANT: '1'")
        assert launch(tmp_path, file, "grpo.yaml").sides[1].profile == profile


def test_six_ranks_are_added_by_vllm_s_own_kernels(tmp_path: Path) -> None:
    side = launch(tmp_path, "vllm serve Qwen/Qwen3-235B-A22B -tp 6").sides[0]
    assert (side.profile, side.further, side.sets) == ("vllm", (), {})


@pytest.mark.parametrize("name", ["InklingForCausalLM", "Step5ForCausalLM", "HYV4ForCausalLM", "BeamForCausalLM"])
def test_architectures_of_which_vllm_compiles_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architectures": [name]}), "utf-8")
    assert launch(tmp_path, "vllm serve ./model").sides[0].profile == "vllm-eager"
