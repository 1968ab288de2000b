"""What SGLang and Megatron-LM print or hand out of their arguments, against the command that asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.show import warning_line

DEFAULTS: dict[str, Any] = {
    "model_path": "Qwen/Qwen3-30B-A3B",
    "tokenizer_path": "Qwen/Qwen3-30B-A3B",
    "tp_size": 1,
    "ep_size": 1,
    "dtype": "auto",
    "quantization": None,
    "disable_radix_cache": False,
    "enable_fp32_lm_head": False,
    "enable_deterministic_inference": False,
    "max_running_requests": None,
    "cuda_graph_bs_decode": [1, 2, 4],
    "host": "127.0.0.1",
}
COMMANDS: dict[str, dict[str, Any]] = {
    "--tp 4 --ep-size 4 --enable-deterministic-inference": {
        "tp_size": 4,
        "ep_size": 4,
        "enable_deterministic_inference": True,
    },
    "--tp 2 --enable-fp32-lm-head --dtype bfloat16": {"tp_size": 2, "enable_fp32_lm_head": True, "dtype": "bfloat16"},
    "--quantization fp8 --disable-radix-cache": {"quantization": "fp8", "disable_radix_cache": True},
}
MEGATRON = """\
setting number of microbatches to constant 1
[default0]:------------------------ arguments ------------------------
[default0]:  bf16 ............................................ True
[default0]:  expert_model_parallel_size ...................... 8
[default0]:  fp16 ............................................ False
[default0]:  moe_router_dtype ................................ fp64
[default0]:  moe_token_dispatcher_type ....................... alltoall
[default0]:  num_layers ...................................... 48
[default0]:  params_dtype .................................... torch.bfloat16
[default0]:  sequence_parallel ............................... True
[default0]:  tensor_model_parallel_size ...................... 4
[default0]:  timers .......................................... <megatron.core.timers.Timers object at 0x7f>
[default0]:-------------------- end of arguments ---------------------
"""
PRETRAIN = (
    "torchrun pretrain_gpt.py --bf16 --expert-model-parallel-size 8 --moe-router-dtype fp64 --num-layers 48 "
    "--moe-token-dispatcher-type alltoall --sequence-parallel --tensor-model-parallel-size 4\n"
)


def comes_to(path: Path) -> tuple[Any, ...]:
    launch = read(path)
    sides = [(side.role, side.variant, side.further, side.sets) for side in launch.sides]
    warnings = [warning_line(warning).partition(" (/")[0] for warning in launch.warnings]
    return sides, warnings, [decision.says for decision in launch.decisions]


@pytest.mark.parametrize("form", ["answer", "log", "earlier log"])
@pytest.mark.parametrize("command", COMMANDS)
def test_sglang(command: str, form: str, tmp_path: Path) -> None:
    values = DEFAULTS | COMMANDS[command]
    texts = {
        "answer": ("a.json", json.dumps({**values, "version": "0.5.23", "internal_states": [{}]}, indent=1)),
        "log": ("a.log", f"[2026-11-26 10:00:00] ready\n[2026-11-26 10:00:01] server_args={values!r}\n"),
        "earlier log": ("a.txt", f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in values.items())})\n"),
    }
    name, text = texts[form]
    (tmp_path / name).write_text(text)
    (tmp_path / "serve.sh").write_text(f"python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B {command}\n")
    assert comes_to(tmp_path / name) == comes_to(tmp_path / "serve.sh")
    launch = read(tmp_path / name)
    assert launch.resolved_by == ("SGLang 0.5.23" if form == "answer" else "SGLang")
    stated = {*(s.name for s in launch.settings if s.given), *(key.name for key in launch.irrelevant)}
    assert stated >= COMMANDS[command].keys()
    assert launch.ignored == ()


def test_megatron(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(MEGATRON)
    (tmp_path / "train.sh").write_text(PRETRAIN)
    assert comes_to(tmp_path / "train.log") == comes_to(tmp_path / "train.sh")
    (router,) = (s for s in read(tmp_path / "train.log").settings if s.name == "moe_router_dtype")
    assert (router.value, router.where.rsplit(":", 1)[1]) == ("fp64", "6")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x server_args={'model_path': 'a', 'tp_size'\n", "a.log:1: SGLang's `server_args=` is not whole"),
        (MEGATRON.partition("[default0]:  timers")[0], "a.log:2: Megatron-LM's arguments begin here and do not end"),
    ],
)
def test_what_is_cut_off_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(SpecError) as refusal:
        read(tmp_path / "a.log")
    assert message in str(refusal.value)


def test_a_text_with_a_command_line_is_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "serve.txt").write_text("vllm serve Qwen/Qwen3-30B-A3B -tp 2\n")
    launch = read(tmp_path / "serve.txt")
    assert (launch.engine, launch.resolved_by) == ("vLLM", "")


def test_of_a_long_value_both_ends_are_printed(tmp_path: Path) -> None:
    """What an engine resolved of speculative decoding holds two whole configurations of models."""
    drafts = json.dumps({"method": "ngram", **{f"field_{i}": i for i in range(400)}, "num_speculative_tokens": 3})
    (tmp_path / "serve.sh").write_text(f"vllm serve MODEL --speculative-config '{drafts}'\n")
    (line,) = (line for line in map(warning_line, read(tmp_path / "serve.sh").warnings) if "speculative" in line)
    assert "ngram" in line
    assert '"num_speculative_tokens": 3}: speculative decoding: tokens are verified' in line
    assert len(line) < 500
