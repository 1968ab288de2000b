"""What decides numerics and has no profile: a warning by its name, and nothing in its place."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from moeparity.documents.checked import shipped
from moeparity.errors import SpecError
from moeparity.profiles.launch import knowledge, nemo_rl, read, servers, verl
from moeparity.profiles.launch.knowledge import options_file, unstated
from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.report import Launch
from tests.command import inside

VERL = "python3 -m verl.trainer.main_ppo "
MEGATRON, ROLLOUT = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.rollout."


def launch(folder: Path, text: str, name: str = "launch.sh") -> Launch:
    (folder / name).write_text(text, "utf-8")
    return read(folder / name)


def warned(launch_read: Launch) -> list[str]:
    return [warning.name for warning in launch_read.warnings if warning.name]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("vllm serve m --quantization fp8", ["quantization"]),
        ("vllm serve m -q awq", ["quantization"]),
        ("vllm serve m --kv-cache-dtype fp8_e4m3", ["kv_cache_dtype"]),
        ("vllm serve m --kv-cache-dtype auto --quantization none", []),
        ('vllm serve m --speculative-config \'{"method": "mtp"}\'', ["speculative_config"]),
        ("vllm serve m --enable-lora --enable-eplb --enable-dbo", ["enable_eplb", "enable_dbo", "enable_lora"]),
        ("vllm serve m --no-enable-lora", []),
        ("vllm serve m --moe-backend deep_gemm", ["moe_backend"]),
        ("vllm serve m --attention-backend FLASHINFER", ["attention_backend"]),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM=0 vllm serve m", ["VLLM_ALLREDUCE_USE_SYMM_MEM"]),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM=1 vllm serve m", []),
        ('vllm serve m --hf-overrides \'{"rope_theta": 1, "head_dtype": "float32"}\'', ["hf_overrides"]),
        (
            "sglang serve m --quantization fp8 --speculative-algorithm EAGLE --enable-two-batch-overlap",
            ["quantization", "speculative_algorithm", "enable_two_batch_overlap"],
        ),
        ("sglang serve m --moe-a2a-backend mooncake", ["moe_a2a_backend"]),
        ("sglang serve m --disable-radix-cache --chunked-prefill-size -1", []),
        ("SGLANG_ROPE_CACHE_FP32=1 sglang serve m", ["SGLANG_ROPE_CACHE_FP32"]),
        (f"{VERL} actor_rollout_ref.rollout.top_p=0.9", ["actor_rollout_ref.rollout.top_p"]),
        (f"{VERL} actor_rollout_ref.rollout.top_p=1.0 actor_rollout_ref.rollout.top_k=-1", []),
        (f"{VERL} actor_rollout_ref.model.lora_rank=32", ["actor_rollout_ref.model.lora_rank"]),
        (
            f"{VERL} model_engine=megatron +{MEGATRON}override_transformer_config.fp8=hybrid",
            [f"{MEGATRON}override_transformer_config.fp8"],
        ),
        # Without Megatron-LM its options do nothing, and neither do vLLM's in a rollout of SGLang.
        (f"{VERL} +{MEGATRON}override_transformer_config.fp8=hybrid", []),
        (
            f"{VERL} {ROLLOUT}name=sglang +{ROLLOUT}engine_kwargs.vllm.quantization=fp8",
            [],
        ),
        (
            f"{VERL} +actor_rollout_ref.rollout.engine_kwargs.vllm.quantization=fp8",
            ["actor_rollout_ref.rollout.engine_kwargs.vllm.quantization"],
        ),
    ],
)
def test_an_option_without_a_profile_is_a_warning_by_its_name(tmp_path: Path, text: str, names: list[str]) -> None:
    launch_read = launch(tmp_path, text)
    assert warned(launch_read) == names
    assert {warning.where for warning in launch_read.warnings if warning.name} <= {f"{tmp_path / 'launch.sh'}:1"}


def test_fp8_on_both_sides_of_nemo_rl(tmp_path: Path) -> None:
    text = (
        "policy:\n  dtensor_cfg: {enabled: false}\n"
        "  megatron_cfg: {enabled: true, fp8_cfg: {enabled: true, fp8: e4m3}, moe_router_dtype: fp32}\n"
        "  generation: {vllm_cfg: {precision: fp8, kv_cache_dtype: fp8}}\n"
    )
    launch_read = launch(tmp_path, text, "grpo.yaml")
    assert [(warning.role, warning.name) for warning in launch_read.warnings] == [
        ("rollout", "policy.generation.vllm_cfg.precision"),
        ("rollout", "policy.generation.vllm_cfg.kv_cache_dtype"),
        ("trainer", "policy.megatron_cfg.fp8_cfg.enabled"),
    ]


def test_a_null_is_no_setting(tmp_path: Path) -> None:
    launch_read = launch(
        tmp_path, "model: m\nquantization: null\nenforce-eager: null\ntensor-parallel-size: 1\n", "a.yaml"
    )
    assert not launch_read.warnings
    assert launch_read.sides[0].profile == "vllm"


def test_what_is_done_unless_switched_off_is_told(tmp_path: Path) -> None:
    names = [line.partition(":")[0] for line in launch(tmp_path, "vllm serve m").unstated]
    assert names == ["enable_chunked_prefill", "enable_prefix_caching", "cudagraph_capture_sizes"]
    text = "vllm serve m --no-enable-chunked-prefill --no-enable-prefix-caching"
    names = [line.partition(":")[0] for line in launch(tmp_path, text).unstated]
    assert names == ["cudagraph_capture_sizes"]


def test_an_option_that_nobody_knows_is_not_looked_at_and_changes_no_warning(tmp_path: Path) -> None:
    launch_read = launch(tmp_path, "sglang serve m --quantisation fp8 --host 0.0.0.0")
    assert [(key.name, key.hint) for key in launch_read.ignored] == [("quantisation", "Did you mean 'quantization'?")]
    assert [key.name for key in launch_read.irrelevant] == ["host"]
    assert not launch_read.warnings


@pytest.mark.parametrize("program", [servers.VLLM, servers.SGLANG, verl.VERL, nemo_rl.NEMO_RL])
def test_no_option_stands_in_two_lists(program: Program) -> None:
    names = [name for option in program.options for name in option.names]
    assert sorted(names) == sorted(set(names))
    assert not set(names) & program.irrelevant


def test_the_lists_hold_what_the_engines_have() -> None:
    """A sample; test_own_parsers.py compares them all."""
    names = {name for option in servers.VLLM.options for name in option.names} | servers.VLLM.irrelevant
    assert {"linear_backend", "gpu_memory_utilization", "dcp_q_replicate", "mm_encoder_tp_mode"} <= names
    names = {name for option in servers.SGLANG.options for name in option.names} | servers.SGLANG.irrelevant
    assert {"enable_symm_mem", "mem_fraction_static", "dsa_topk_backend", "enable_fp32_lm_head"} <= names
    assert len(names) > 600


def test_warnings_come_first_and_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve m \\\n --quantization fp8\n", "utf-8")
    done = inside("show", "launch", "a.sh", "--json", "a.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith("WARNING: 1 thing decides numerics and no profile has it")
    (warning,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["found"]["warnings"]
    assert (warning["name"], warning["value"], warning["where"]) == ("quantization", "fp8", "a.sh:2")
    assert "quantised" in warning["says"]


AWKWARD = ("", "0", "-1", "null", "{}", '{"a": 1}', "[1]", "${X}", "nan", "1e9", "'", "deepep", "megatron", None)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("program", "command"),
    [
        (servers.VLLM, "vllm serve m"),
        (servers.SGLANG, "sglang serve Qwen/Qwen3-30B-A3B"),
        (verl.VERL, VERL),
        (nemo_rl.NEMO_RL, ""),
    ],
)
def test_no_value_of_any_option_ends_in_a_trace(tmp_path: Path, program: Program, command: str, seed: int) -> None:
    """Read, or refused in a line; options and values drawn at random."""
    draw = random.Random(seed)  # noqa: S311  (no secret)
    chosen = {
        option.name: draw.choice(AWKWARD) for option in draw.sample(program.options, 12) if not option.environment
    }
    if command and seed % 2:
        sign = ("", "=") if command == VERL else ("--", " ")
        text, name = " ".join([command, *(f"{sign[0]}{n}{sign[1]}{v}" for n, v in chosen.items())]), "a.sh"
    else:
        text, name = json.dumps(nested(chosen)), "a.json"
    try:
        launch_read = launch(tmp_path, text, name)
    except SpecError as error:
        assert "\n" not in str(error)
    else:
        assert json.loads(launch_read.to_json())["found"]["engine"]


def nested(values: dict[str, str | None]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *heads, last = name.rstrip(".").split(".")
        inside_of = tree
        for head in heads:
            inner = inside_of.setdefault(head, {})
            inside_of = inner if isinstance(inner, dict) else {}
        inside_of[last] = value
    return tree


NEMO = "policy:\n  dtensor_cfg: {enabled: false}\n  megatron_cfg: {enabled: true, %s}\n  generation: {%s}\n"
TWO = "tensor_model_parallel_size: 2, sequence_parallel: true, expert_model_parallel_size: 4"
GENERATES = "backend: megatron, mcore_generation_config: {%s}"


@pytest.mark.parametrize(
    ("trained", "generated", "placement", "router", "warned"),
    [
        # Nothing differs: generation shares the trainer's model, and what else is set has no effect.
        (TWO, "", {"tensor": 2, "sequence": True}, "fp64", []),
        (TWO, "moe_router_dtype: fp32", {"tensor": 2, "sequence": True}, "fp64", []),
        (TWO, "tensor_model_parallel_size: 2, moe_router_dtype: fp32", {"tensor": 2, "sequence": True}, "fp64", []),
        # A model of its own, with what is set over the trainer's.
        (TWO, "tensor_model_parallel_size: 1, moe_router_dtype: fp32", {}, "fp32", []),
        (TWO, "tensor_model_parallel_size: 4", {"tensor": 4, "sequence": True}, "fp64", []),
        (TWO, "tensor_model_parallel_size: 4, sequence_parallel: false", {"tensor": 4}, "fp64", []),
        (
            TWO,
            "expert_model_parallel_size: 8, moe_token_dispatcher_type: allgather",
            {"tensor": 2, "sequence": True, "expert": 8},
            *("fp64", []),
        ),
        (
            TWO,
            "transformer_impl: inference_optimized",
            {"tensor": 2, "sequence": True},
            *("fp64", ["policy.generation.mcore_generation_config.transformer_impl"]),
        ),
        (f"{TWO}, context_parallel_size: 2", "moe_router_dtype: fp32", {"tensor": 2, "sequence": True}, "fp32",
         ["policy.megatron_cfg.context_parallel_size"]),
    ],
)  # fmt: skip
def test_generation_by_megatron_has_its_own_settings_over_the_trainer_s(
    tmp_path: Path, trained: str, generated: str, placement: dict[str, Any], router: str, warned: list[str]
) -> None:
    text = NEMO % (trained, GENERATES % generated)
    launch_read = launch(tmp_path, text, "grpo.yaml")
    rollout = launch_read.sides[1]
    assert dict(rollout.placement) == placement
    assert ("megatron-router-fp32" in (rollout.profile, *rollout.further)) == (router == "fp32")
    assert (rollout.sets.get("gate:output") == "fp64") == (router == "fp64")
    assert sorted(w.name for w in launch_read.warnings if w.name) == sorted(warned)
    names = {key.name for key in launch_read.irrelevant if not key.hint.startswith("no effect")}
    assert not [name for name in names if "mcore_generation_config" in name]


RAY = "+ray_kwargs.ray_init.runtime_env.env_vars."


def test_generation_on_other_gpus_has_its_own_settings(tmp_path: Path) -> None:
    apart = f"colocated: {{enabled: false}}, {GENERATES % 'moe_router_dtype: fp32'}"
    rollout = launch(tmp_path, NEMO % (TWO, apart), "grpo.yaml").sides[1]
    assert rollout.profile == "megatron-router-fp32"


@pytest.mark.parametrize(
    ("text", "name", "roles"),
    [
        (NEMO % ("env_vars: {NCCL_ALGO: Tree, VLLM_BATCH_INVARIANT: '1'}", ""), "grpo.yaml", ["trainer"]),
        (NEMO % ("", "vllm_cfg: {env_vars: {VLLM_BATCH_INVARIANT: '1', NCCL_ALGO: Tree}}"), "grpo.yaml", ["rollout"]),
        (
            f"{VERL} model_engine=megatron {RAY}NCCL_ALGO=Tree {RAY}VLLM_BATCH_INVARIANT=1",
            *("run.sh", ["rollout", "trainer"]),
        ),
        ("[inference]\nenv_vars = {VLLM_BATCH_INVARIANT = '1'}\n", "rl.toml", ["rollout"]),
        ("[trainer.env_vars]\nVLLM_BATCH_INVARIANT = '1'\n[trainer.model]\nimpl = 'hf'\n", "rl.toml", []),
        ("[env_vars]\nVLLM_BATCH_INVARIANT = '1'\n[trainer.model]\nimpl = 'hf'\n", "rl.toml", ["rollout"]),
    ],
)
def test_variables_that_a_framework_sets_count_on_the_side_that_has_them(
    tmp_path: Path, text: str, name: str, roles: list[str]
) -> None:
    launch_read = launch(tmp_path, text, name)
    sides = {side.role for side in launch_read.sides if side.profile.startswith("vllm-batch-invariant")}
    sides |= {warning.role for warning in launch_read.warnings if warning.name == "NCCL_ALGO"}
    assert sorted(sides) == roles


def test_variables_that_a_framework_sets_in_a_way_that_is_not_read_are_no_default(tmp_path: Path) -> None:
    text = NEMO % ("", "vllm_cfg: {env_vars: '${oc.env:X}'}")
    settings = {setting.name: setting.value for setting in launch(tmp_path, text, "grpo.yaml").settings}
    assert settings["VLLM_BATCH_INVARIANT"].startswith("unresolved: perhaps set by ")


FP8 = "fp8_cfg: {enabled: %s, fp8: e4m3, fp8_recipe: blockwise}, peft: {enabled: %s, dim: 8, alpha: 32}"


@pytest.mark.parametrize("on", ["true", "false"])
def test_what_details_a_warning_changes_something_where_that_is_on(tmp_path: Path, on: str) -> None:
    launch_read = launch(tmp_path, NEMO % (FP8 % (on, on), ""), "grpo.yaml")
    harmless = {key.name.rpartition(".")[2] for key in launch_read.irrelevant if not key.hint.startswith("no effect")}
    idle = {key.name.rpartition(".")[2] for key in launch_read.irrelevant if key.hint.startswith("no effect")}
    names = {"fp8_recipe", "fp8", "dim", "alpha"}
    assert not names & harmless
    assert names & idle == (names if on == "false" else set())
    assert len([warning for warning in launch_read.warnings if warning.name]) == (2 if on == "true" else 0)


@pytest.mark.parametrize(
    ("text", "warns", "listed"),
    [
        ("vllm serve m --generation-config /data", False, False),
        ("vllm serve m --generation-config /data --logprobs-mode processed_logprobs", True, False),
        ("vllm serve m --generation-config vllm --logprobs-mode processed_logprobs", False, False),
        ("vllm serve m --logprobs-mode processed_logprobs", False, True),
        ("vllm serve m", False, False),
        ("sglang serve m --sampling-defaults model", True, False),
        ("sglang serve m --sampling-defaults openai", False, False),
        ("sglang serve m", False, True),
        ("SGLANG_RETURN_ORIGINAL_LOGPROB=1 sglang serve m --sampling-defaults model", False, False),
        ("trl vllm-serve --model m", False, False),
        (f"{VERL} +{ROLLOUT}engine_kwargs.vllm.generation_config=auto", False, False),
    ],
)
def test_a_sampler_s_defaults_count_where_log_probabilities_are_of_what_is_sampled(
    tmp_path: Path, text: str, warns: bool, listed: bool
) -> None:
    launch_read = launch(tmp_path, text)
    names = ("generation_config", "sampling_defaults")
    assert any(warning.name in names for warning in launch_read.warnings) is warns
    assert any(line.startswith(names) for line in launch_read.unstated) is listed
    assert not [key for key in launch_read.ignored if key.name.endswith(names)]


FUSED = "the shared expert runs as one more routed expert"


@pytest.mark.parametrize(
    ("model", "options", "fused"),
    [
        ("unsloth/DeepSeek-V3-bf16", "", True),
        ("unsloth/DeepSeek-V3-bf16", "--disable-shared-experts-fusion", False),
        ("unsloth/DeepSeek-V3-bf16", "--ep-size 8", False),
        ("unsloth/DeepSeek-V3-bf16", "--moe-a2a-backend deepep", False),
        ("unsloth/DeepSeek-V3-bf16", "--moe-runner-backend flashinfer_trtllm", False),
        ("unsloth/DeepSeek-V3-bf16", "--enable-two-batch-overlap", False),
        ("moonshotai/Moonlight-16B-A3B", "", False),
        ("zai-org/GLM-4.5-Air", "", True),
        ("zai-org/GLM-4.5-Air", "--enable-two-batch-overlap", True),
        ("Qwen/Qwen3-30B-A3B", "", False),
    ],
)
def test_whether_sglang_fuses_the_shared_expert_is_said(tmp_path: Path, model: str, options: str, fused: bool) -> None:
    launch_read = launch(tmp_path, f"python -m sglang.launch_server --model-path {model} --tp 8 {options}")
    assert any(warning.value.startswith(FUSED) for warning in launch_read.warnings) is fused
    apart = any("added apart, as the profile has it" in decision.says for decision in launch_read.decisions)
    assert apart == (not fused and "DeepSeek" in model)


def test_another_device_is_a_warning(tmp_path: Path) -> None:
    assert warned(launch(tmp_path, f"{VERL} trainer.device=npu")) == ["trainer.device"]
    assert warned(launch(tmp_path, f"{VERL} trainer.device=cuda trainer.nnodes=2")) == []
    assert warned(launch(tmp_path, "sglang serve m --device cpu")) == ["device"]


def test_every_program_has_a_file_and_the_names_of_lists_do_not_repeat() -> None:
    for program in shipped("launch"):
        file = options_file(program)
        assert file.program == program
        assert unstated(program) or program == "shared"
        for name, names in file.lists.items():
            assert len(names) == len(set(names)), f"{program}: {name}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast: lora", "m.yaml:5: 'lora' is none of the file's `reasons`, and no sentence; expected one of kernel."),
        (
            "fast: {of: slow, changes: kernel}",
            "an option says either what it `changes` or what option it says more `of`",
        ),
        ("fast: {changes: kernel, off: [1], unless: [2]}", "`off`, `unless` and `default` are three ways to say when"),
        ("fast: {changes: kernel, concern: state}", "m.yaml:5: unknown key 'unstated.all.options.fast.concern'"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    path = tmp_path / "m.yaml"
    head = "kind: launch\nprogram: m\nreasons: {kernel: which kernel runs}\nunstated: {all: {options: {\n"
    path.write_text(f"{head}{text}}}}}}}\n")
    monkeypatch.setattr(knowledge, "shipped", lambda _: {"m": path})
    options_file.cache_clear()
    try:
        with pytest.raises(SpecError, match=re.escape(says)):
            unstated("m")
    finally:
        options_file.cache_clear()
