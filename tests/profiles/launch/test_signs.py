"""Whose options a file has: a block or a word in common makes no file another program's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch.programs import programs_of

FOREIGN: dict[str, Mapping[str, Any]] = {
    "ROLL": {
        "rollout_batch_size": 64,
        "lora_rank": 32,
        "actor_infer": {"strategy_args": {"strategy_name": "vllm"}},
        "actor_train": {"strategy_args": {"strategy_name": "megatron_train"}},
    },
    "RLinf": {
        "cluster": {"num_nodes": 1},
        "runner": {"task_type": "reasoning"},
        "inference": {"group_name": "InferenceGroup"},
        "actor": {"training_backend": "megatron"},
        "rollout": {"rollout_backend": "sglang"},
    },
    "EasyR1": {"data": {"seed": 1}, "worker": {"rollout": {"tensor_parallel_size": 2}}, "trainer": {"nnodes": 1}},
    "ms-swift": {"rlhf_type": "grpo", "model": "m", "use_vllm": True, "vllm_mode": "colocate", "temperature": 1.0},
    "LLaMA-Factory": {"stage": "sft", "finetuning_type": "full", "model_name_or_path": "m", "use_vllm": True},
}
"""Files of frameworks that are not read, cut down to what other programs have, too."""
NOBODYS: dict[str, Mapping[str, Any]] = {
    "one block of prime-rl's": {"orchestrator": {"url": "x"}, "agent": {"name": "x"}, "tasks": 3, "metrics": {"a": 1}},
    "a trainer's words": {"model": "m", "seed": 42, "dist_config": {"name": "fsdp2"}, "train_dataset": "x", "out": "y"},
    "a policy that moves robots": {"policy": {"type": "act"}, "dataset": {"id": "x"}, "steps": 9, "wandb": {"on": 1}},
    "a trainer of Lightning's": {
        "trainer": {"strategy": "fsdp", "devices": 8},
        "data": {"path": "x"},
        "model": {"a": 1},
    },
}
OWN: dict[str, Mapping[str, Any]] = {
    "AReaL": {
        "gconfig": {"temperature": 1.0},
        "actor": {"backend": "fsdp:d4p1t1"},
        "rollout": {"backend": "vllm:d4p1t1"},
        "vllm": {"dtype": "bfloat16"},
        "sglang": {"context_length": 32768},
        "seed": 1,
    },
    "prime-rl": {"vllm": {"tensor_parallel_size": 2}, "server": {"port": 8000}},
    "NeMo-RL": {"policy": {"megatron_cfg": {"enabled": True}}},
    "SkyRL": {"trainer": {"strategy": "fsdp2"}, "generator": {"batched": True}},
    "TRL": {"model_name_or_path": "m", "use_vllm": True, "of_its_script": 1, "another": 2, "third": 3},
    "vLLM": {"model": "m", "tensor_parallel_size": 2, "enable_expert_parallel": True},
    "SGLang": {"model_path": "m", "tp_size": 2, "attention_backend": "fa3"},
}


def written(folder: Path, fields: Mapping[str, Any]) -> Path:
    (folder / "run.yaml").write_text(json.dumps(fields), "utf-8")
    return folder / "run.yaml"


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_framework_that_is_not_read_is_named(tmp_path: Path, framework: str) -> None:
    with pytest.raises(SpecError, match=f"these are options of {framework}, which are not read"):
        programs_of(written(tmp_path, FOREIGN[framework]))


@pytest.mark.parametrize("case", NOBODYS)
def test_what_is_nobodys_is_not_given_to_the_nearest(tmp_path: Path, case: str) -> None:
    with pytest.raises(SpecError, match="whose configuration this is cannot be told"):
        programs_of(written(tmp_path, NOBODYS[case]))


@pytest.mark.parametrize("engine", OWN)
def test_a_programs_own_file_is_its_own(tmp_path: Path, engine: str) -> None:
    ((_, program),) = programs_of(written(tmp_path, OWN[engine]))
    assert program.engine == engine
