"""Which ops see the schedule, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.schedule.measure import seeing
from moeparity.errors import Where
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides
from tests.plan.configs import DEEPSEEK_V3, QWEN3_MOE, graph

HERE = Where(Path(__file__))
NORM = {"rms_norm": 1}


def plan(folder: Path, profile: str, config: dict[str, object] = QWEN3_MOE, **settings_by_name: str | float) -> Plan:
    settings = {name.replace("__", ":"): value for name, value in settings_by_name.items()}
    return bind(graph(folder, config), load_profile(profile, HERE), "bf16", overrides(settings, HERE))


@pytest.mark.parametrize("profile", ["vllm-batch-invariant", "vllm-batch-invariant-eager", "sglang-deterministic"])
def test_no_op_of_a_batch_invariant_profile_sees_it(tmp_path: Path, profile: str) -> None:
    assert seeing(plan(tmp_path, profile)) == {}


@pytest.mark.parametrize(("profile", "counts"), [("vllm-batch-invariant", {"mla": 3}), ("sglang-deterministic", {})])
def test_latent_attention_goes_another_way_with_many_new_tokens(
    tmp_path: Path, profile: str, counts: dict[str, int]
) -> None:
    """vLLM expands a prompt's latents from 513 new tokens of a request on, batch-invariant or not."""
    assert seeing(plan(tmp_path, profile, DEEPSEEK_V3)) == counts


def test_ops_that_see_it_are_counted(tmp_path: Path) -> None:
    counts = seeing(plan(tmp_path, "hf-eager"))
    assert counts == {"linear": 8, "attention": 2, "gate": 2, "experts": 2, "lm_head": 1}
    assert seeing(plan(tmp_path, "vllm-batch-invariant", lm_head__rows="all")) == {"lm_head": 1}


def test_an_op_that_sees_it_in_one_phase_or_chooses_by_phase_is_counted(tmp_path: Path) -> None:
    of, profile = graph(tmp_path, QWEN3_MOE), load_profile("vllm-batch-invariant", HERE)
    for setting, counts in (({"lm_head:rows@decode": "all"}, {"lm_head": 1}), ({"norm:output@decode": "fp32"}, NORM)):
        bound = bind(of, profile, "bf16", overrides(setting, HERE), phases=("prefill", "decode"))
        assert seeing(bound) == counts
