"""AReaL's words for an engine and its ranks, and what becomes of options that it hands to nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from moeparity.profiles.launch import read
from moeparity.profiles.launch.report import Launch
from moeparity.profiles.launch.show import warning_line


def launched(
    folder: Path, trainer: str, rollout: str, actor: Mapping[str, Any] | None = None, **blocks: Mapping[str, Any]
) -> Launch:
    fields = {
        "gconfig": {"temperature": 1.0},
        "actor": {"backend": trainer, "path": "Qwen/Qwen3-30B-A3B", **(actor or {})},
        "rollout": {"backend": rollout},
        **blocks,
    }
    (folder / "config.yaml").write_text(json.dumps(fields), "utf-8")
    return read(folder / "config.yaml")


def sides(launch: Launch) -> dict[str, str]:
    return {side.role: side.variant for side in launch.sides}


def warned(launch: Launch) -> str:
    return "\n".join(map(warning_line, launch.warnings))


@pytest.mark.parametrize(
    ("spec", "placement", "cut"),
    [
        ("megatron:d8", "", ""),
        ("megatron:d2t4", "placement: {tensor: 4, sequence: true}", '"**.experts:tensor": 1'),
        ("megatron[actor]:d2t4p2", "placement: {tensor: 4, sequence: true}", '"**.experts:tensor": 1'),
        ("megatron:(attn:d4p4t2|ffn:d2p4e4)", "placement: {tensor: 2, sequence: true}", '"**.experts:tensor": 1'),
        ("megatron: (attn: d4 t2 | ffn: d4 t2)", "placement: {tensor: 2, sequence: true}", ""),
        ("megatron:attn:d4t2|ffn:d4e2", "placement: {tensor: 2, sequence: true}", '"**.experts:tensor": 1'),
        ("fsdp:d4t2", "placement: {tensor: 2}", ""),
        ("fsdp:d8", "", ""),
    ],
)
def test_ranks_of_the_trainer(tmp_path: Path, spec: str, placement: str, cut: str) -> None:
    trainer = sides(launched(tmp_path, spec, "sglang:d1"))["trainer"]
    assert ("placement" in trainer) == bool(placement)
    assert placement in trainer
    assert ("experts:tensor" in trainer) == bool(cut)


@pytest.mark.parametrize(
    "spec", ["megatron", "megatron:", "megatrn:d4", "d4t2", "deepspeed:d4", "fsdp:d4t2+sglang:d1", "sglang:d4"]
)
def test_a_word_that_says_no_engine_is_told(tmp_path: Path, spec: str) -> None:
    launch = launched(tmp_path, spec, "vllm:d2t2")
    assert "no shipped profile" not in sides(launch)["rollout"]
    assert "expected one of fsdp, megatron, archon, as in `fsdp:d4t2`." in warned(launch)
    assert ("Did you mean 'megatron'?" in warned(launch)) == (spec == "megatrn:d4")


def test_servers_have_the_ranks_of_one_replica(tmp_path: Path) -> None:
    assert "placement: {tensor: 4, pipeline: 2" in sides(launched(tmp_path, "fsdp:d1", "sglang:d8t4p2"))["rollout"]
    assert "placement: {tensor: 4}" in sides(launched(tmp_path, "fsdp:d1", "vllm:d8t4"))["rollout"]


@pytest.mark.parametrize(
    ("field", "value", "is_told"),
    [
        ("moe_router_dtype", "fp32", True),
        ("moe_router_dtype", None, False),
        ("moe_token_dispatcher_type", "alltoall", False),
        ("moe_token_dispatcher_type", "flex", True),
        ("moe_permute_fusion", True, True),
        ("moe_enable_deepep", False, False),
    ],
)
def test_what_is_handed_to_nobody_is_told_where_it_would_matter(
    tmp_path: Path, field: str, value: object, is_told: bool
) -> None:
    plain = launched(tmp_path, "megatron:d2e4", "sglang:d1")
    launch = launched(tmp_path, "megatron:d2e4", "sglang:d1", {"megatron": {field: value}})
    assert ("AReaL hands it to nobody" in warned(launch)) == is_told
    assert sides(launch) == sides(plain), "what nobody reads changes no side"
    elsewhere = launched(tmp_path, "fsdp:d2", "sglang:d1", {"megatron": {field: value}})
    assert "AReaL hands it to nobody" not in warned(elsewhere)


def test_without_a_bridge_that_is_known_nothing_is_said_of_it(tmp_path: Path) -> None:
    launch = launched(tmp_path, "megatron:d2", "sglang:d1", {"megatron": {"bridge_type": "own"}})
    assert "no shipped profile speaks of own" in warned(launch)
    assert not any("bridge for" in decision.says.lower() for decision in launch.decisions)


def test_each_side_has_its_own_temperature(tmp_path: Path) -> None:
    def divided(rollout: str, actor: float, sampler: float, greedy: bool) -> dict[str, Any]:
        gconfig = {"temperature": sampler, "greedy": greedy}
        launch = launched(tmp_path, "fsdp:d2", rollout, {"temperature": actor}, gconfig=gconfig)
        return {side.role: side.sets.get("log_probs:temperature") for side in launch.sides}

    assert divided("sglang:d1", 1.0, 0.7, False) == {"trainer": None, "rollout": 0.7}
    assert divided("sglang:d1", 0.7, 0.7, True) == {"trainer": 0.7, "rollout": None}
    # vLLM's are of the logits before the temperature.
    assert divided("vllm:d1", 0.7, 0.7, False) == {"trainer": 0.7, "rollout": None}
