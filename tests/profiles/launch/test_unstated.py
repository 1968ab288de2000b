"""What decides numerics and has no profile: a warning by its name, and nothing in its place."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import nemo_rl, read, servers, sglang_unstated, verl, vllm_unstated
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
    names = {name for option in servers.VLLM.options for name in option.names} | vllm_unstated.IRRELEVANT
    assert {"linear_backend", "gpu_memory_utilization", "dcp_q_replicate", "mm_encoder_tp_mode"} <= names
    names = {name for option in servers.SGLANG.options for name in option.names} | sglang_unstated.IRRELEVANT
    assert {"enable_symm_mem", "mem_fraction_static", "dsa_topk_backend", "enable_fp32_lm_head"} <= names
    assert len(names) > 600


def test_warnings_come_first_and_are_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve m \\\n --quantization fp8\n", "utf-8")
    done = inside("engines", "--config", "a.sh", "--json", "a.json", cwd=tmp_path)
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
