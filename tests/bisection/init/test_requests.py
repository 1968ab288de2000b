"""What launch files say that requests ask for, and which of it a side's log-probabilities are of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moeparity.bisection.init.recipe import write_starter
from moeparity.bisection.init.requests import defaults, requested, with_requests
from moeparity.plan.spec import reader
from moeparity.profiles.launch.report import LaunchSetting, LaunchSide
from tests.command import ROOT

QUICKSTART = ROOT / "checkpoints/quickstart"
SERVER = LaunchSide(role="server", profile="vllm", further=(), placement={}, dtype=None)


def setting(name: str, value: str, role: str = "server") -> LaunchSetting:
    return LaunchSetting(role=role, name=name, given=True, value=value, implies="", profile="", where="run.sh:1")


PROCESSED = setting("logprobs_mode", "processed_logprobs")
OVERRIDE = setting(
    "override_generation_config", '{"top_p": 0.95, "top_k": 20, "max_new_tokens": 8, "temperature": 0.7}'
)


def sets(*settings: LaunchSetting, side: LaunchSide = SERVER) -> dict[str, str | float]:
    return dict(with_requests(side, settings, requested(settings)).sets)


def test_a_server_of_processed_log_probabilities_has_what_requests_ask_for() -> None:
    expected = {"log_probs:temperature": 0.7, "log_probs:top_k": 20, "log_probs:top_p": 0.95}
    assert sets(PROCESSED, OVERRIDE) == expected
    origins = with_requests(SERVER, (PROCESSED, OVERRIDE), requested((PROCESSED, OVERRIDE))).origins
    assert set(origins.values()) == {"run.sh:1: override_generation_config"}


def test_raw_ones_have_nothing_of_it() -> None:
    assert sets(setting("logprobs_mode", "raw_logprobs"), OVERRIDE) == {}


def test_a_rollout_has_the_processors_and_its_temperature_stands_elsewhere() -> None:
    rollout = LaunchSide(role="rollout", profile="vllm", further=(), placement={}, dtype=None)
    settings = (
        setting("actor_rollout_ref.rollout.logprobs_mode", "processed_logprobs", "rollout"),
        setting("actor_rollout_ref.rollout.temperature", "0.7", "rollout"),
        setting("actor_rollout_ref.rollout.top_p", "0.9", "rollout"),
    )
    assert sets(*settings, side=rollout) == {"log_probs:top_p": 0.9}


@pytest.mark.parametrize(("name", "value"), [("top_k", "-1"), ("top_p", "1.0"), ("min_p", "0"), ("top_p", "all")])
def test_what_does_nothing_is_not_set(name: str, value: str) -> None:
    assert sets(PROCESSED, setting(name, value)) == {}


@pytest.mark.parametrize(
    ("mode", "place", "expected"),
    [
        ("processed_logprobs", "auto", {"top_p", "temperature"}),
        ("raw_logprobs", "auto", set()),
        ("processed_logprobs", "vllm", set()),
    ],
)
def test_what_vllm_takes_from_the_checkpoint(mode: str, place: str, expected: set[str], tmp_path: Path) -> None:
    text = '{"temperature": 0.6, "top_p": 0.95, "eos_token_id": 3, "do_sample": true}'
    (tmp_path / "generation_config.json").write_text(text, "utf-8")
    settings = (setting("logprobs_mode", mode), setting("generation_config", place))
    defaulted = requested(defaults(settings, tmp_path))
    assert defaulted.keys() == expected
    assert all("generation_config.json (vLLM takes it" in request.origin for request in defaulted.values())
    assert requested(defaults(settings, tmp_path / "none")) == {}
    assert requested(defaults(settings, None)) == {}


def test_a_generation_config_that_is_no_json_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(b"\xff{")
    assert list(defaults([PROCESSED], tmp_path)) == []


def test_greedy_requests_have_no_processor() -> None:
    assert sets(PROCESSED, setting("temperature", "0"), setting("top_p", "0.9")) == {}


def test_of_several_the_first_counts() -> None:
    assert sets(PROCESSED, setting("rollout_top_p", "0.8"), setting("top_p", "0.9")) == {"log_probs:top_p": 0.8}


def test_the_recipe_of_a_server_states_them(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(
        "vllm serve m --logprobs-mode processed_logprobs --override-generation-config "
        '\'{"top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}\'\n',
        "utf-8",
    )
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py --bf16\n", "utf-8")
    write_starter(QUICKSTART, tmp_path / "r.yaml", server=tmp_path / "serve.sh", trainer=tmp_path / "train.sh")
    rules = [rule for rule in reader.read_profile(tmp_path / "r.server.yaml").rules if rule.op == "log_probs"]
    stated = {name: value for rule in rules for name, value in rule.set.items()}
    assert (stated["top_p"], stated["top_k"], stated["repetition_penalty"]) == (0.95, 20, 1.05)


@pytest.mark.parametrize("states_top_p", [True, False])
def test_rollouts_of_a_trainer_take_nothing_from_the_checkpoint(states_top_p: bool, tmp_path: Path) -> None:
    """verl hands vLLM a SamplingParams of its own; that of its validation is another, and not scored."""
    folder = shutil.copytree(QUICKSTART, tmp_path / "checkpoint")
    (folder / "generation_config.json").write_text('{"top_k": 20, "top_p": 0.95, "temperature": 0.6}', "utf-8")
    (tmp_path / "train.sh").write_text(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm "
        f"actor_rollout_ref.rollout.val_kwargs.top_p=0.7 {'actor_rollout_ref.rollout.top_p=0.9' * states_top_p}\n",
        "utf-8",
    )
    write_starter(folder, tmp_path / "r.yaml", trainer=tmp_path / "train.sh")
    text = "\n".join(path.read_text("utf-8") for path in tmp_path.glob("r*.yaml"))
    assert "generation_config.json" not in text
    assert ("top_p: 0.9}" in text, "top_p: 0.7}" in text, "top_p: 0.95}" in text) == (states_top_p, False, False)
