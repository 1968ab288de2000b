"""A trainer's rollout goes by its engine's environment variables, as the engine does that is started alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.options import Option
from moeparity.profiles.launch.programs import PROGRAMS
from moeparity.profiles.launch.servers import SGLANG, VLLM

SERVERS = {VLLM.name: VLLM, SGLANG.name: SGLANG}
ALONE = {
    "vllm": "vllm serve {model} --tensor-parallel-size 2",
    "sglang": "python -m sglang.launch_server --model-path {model} --tp-size 2",
}
VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path={model} "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name="
)
SKYRL = (
    "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path={model} "
    "generator.inference_engine.tensor_parallel_size=2 generator.inference_engine.backend="
)
NEMO_RL = "uv run examples/run_grpo_math.py policy.model_name={model} policy.generation."
SLIME = "python train.py --hf-checkpoint {model} --rollout-batch-size 4 --rollout-num-gpus-per-engine 2"
TRL = "accelerate launch train_grpo.py --model_name_or_path {model} --vllm_tensor_parallel_size 2"
AREAL = "python3 gsm8k_rl.py actor.path={model} actor.backend=fsdp:d1 gconfig.temperature=1.0 rollout.backend="
TRAINERS = {
    ("verl", "vllm"): f"{VERL}vllm",
    ("verl", "sglang"): f"{VERL}sglang",
    ("nemo-rl", "vllm"): f"{NEMO_RL}vllm_cfg.tensor_parallel_size=2",
    ("nemo-rl", "sglang"): f"{NEMO_RL}backend=sglang policy.generation.sglang_cfg.gpus_per_server=2",
    ("slime", "sglang"): SLIME,
    ("miles", "sglang"): f"{SLIME} --use-miles-router",
    ("skyrl", "vllm"): f"{SKYRL}vllm",
    ("skyrl", "sglang"): f"{SKYRL}sglang",
    ("openrlhf", "vllm"): (
        "python3 -m openrlhf.cli.train_ppo_ray --pretrain {model} --vllm_num_engines 2 --vllm_tensor_parallel_size 2"
    ),
    ("trl", "vllm"): f"{TRL} --use_vllm true",
    ("areal", "vllm"): f"{AREAL}vllm:d1t2",
    ("areal", "sglang"): f"{AREAL}sglang:d1t2",
    ("prime-rl", "vllm"): (
        "uv run rl --model.name {model} --inference.parallel.tp 2 --inference.enable-fp32-lm-head false"
    ),
}
"""By trainer and the engine that it starts."""
NOT_STARTED = {
    "verl, of SGLang": (f"{VERL}vllm", SGLANG),
    "verl, of vLLM": (f"{VERL}sglang", VLLM),
    "NeMo-RL, of SGLang": (f"{NEMO_RL}vllm_cfg.tensor_parallel_size=2", SGLANG),
    "NeMo-RL, of vLLM": (f"{NEMO_RL}backend=megatron", VLLM),
    "SkyRL, of SGLang": (f"{SKYRL}vllm", SGLANG),
    "SkyRL, of vLLM": (f"{SKYRL}sglang", VLLM),
    "AReaL, of SGLang": (f"{AREAL}vllm:d1t2", SGLANG),
    "AReaL, of vLLM": (f"{AREAL}sglang:d1t2", VLLM),
    "TRL, a server of its own": (f"{TRL} --use_vllm true --vllm_mode server", VLLM),
    "TRL, transformers": (f"{TRL} --vllm_mode colocate", VLLM),
}
"""Commands, and an engine whose variables do not reach it, or that is not started."""
VARIABLES = [(server.name, option) for server in SERVERS.values() for option in server.options if option.environment]
OF_TRAINERS = [
    pytest.param(command, server, option, id=f"{trainer}-{option.name}")
    for (trainer, engine), command in TRAINERS.items()
    for server, option in VARIABLES
    if server == engine
]
Effect = tuple[Any, ...]


def values(option: Option) -> tuple[str, ...]:
    """Values of which at least one changes what the engine does."""
    if option.name.endswith("PP_LAYER_PARTITION"):
        return "48", "24,24"
    return option.choices or ("0", "1")


def of_rollout(path: Path, name: str = "") -> tuple[Effect, frozenset[str], frozenset[str]]:
    """The side that samples, in words what one variable makes of it, its warnings, and what is not looked at."""
    launch = read(path)
    side = next(side for side in launch.sides if side.role in ("server", "rollout"))
    implies = [(setting.value, setting.implies) for setting in launch.settings if setting.name == name]
    # Variables of AMD's GPUs tell the hardware, whichever engine runs there (test_hardware.py).
    of_side = (warning.says for warning in launch.warnings if warning.role == side.role)
    warnings = frozenset(says for says in of_side if not says.startswith("runs on "))
    looks = (side.profile, side.further, dict(side.sets), side.placement.get("stages"), implies)
    return looks, warnings, frozenset(key.name for key in launch.ignored)


@pytest.fixture(scope="module")
def effect(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Option, str], Effect]:
    """What a value of a variable makes of a command: kept, as many trainers are compared with one server."""
    path, effects = tmp_path_factory.mktemp("variables") / "run.sh", dict[tuple[str, str, str], Effect]()
    unset = dict[str, frozenset[str]]()

    def of(command: str, option: Option, value: str) -> Effect:
        # A model that is not known may be quantised, and have whatever else a variable is about.
        filled = command.format(model="my/model" if option.concerns else "Qwen/Qwen3-30B-A3B")
        if filled not in unset:
            path.write_text(f"{filled}\n", "utf-8")
            unset[filled] = of_rollout(path)[1]
        if (filled, option.name, value) not in effects:
            path.write_text(f"export {option.name}={value}\n{filled}\n" if value else f"{filled}\n", "utf-8")
            try:
                looks, warnings, ignored = of_rollout(path, option.name)
                effects[filled, option.name, value] = *looks, warnings - unset[filled], option.name in ignored
            except SpecError:
                effects[filled, option.name, value] = ("refused",)
        return effects[filled, option.name, value]

    return of


def test_every_trainer_that_samples_with_an_engine_is_here() -> None:
    assert {trainer for trainer, _ in TRAINERS} == {program.name for program in PROGRAMS if "rollout" in program.start}


@pytest.mark.parametrize(("server", "option"), VARIABLES, ids=lambda value: getattr(value, "name", value))
def test_one_of_the_values_changes_the_server(
    server: str, option: Option, effect: Callable[[str, Option, str], Effect]
) -> None:
    """So that no trainer agrees with it by doing nothing."""
    unset = effect(ALONE[server], option, "")
    assert any(effect(ALONE[server], option, value) != unset for value in values(option))


@pytest.mark.parametrize(("command", "server", "option"), OF_TRAINERS)
def test_a_trainer_s_engine_goes_by_its_variables_as_alone(
    command: str, server: str, option: Option, effect: Callable[[str, Option, str], Effect]
) -> None:
    for value in values(option):
        assert effect(command, option, value) == effect(ALONE[server], option, value), value


@pytest.mark.parametrize("place", sorted(NOT_STARTED))
def test_variables_of_an_engine_that_is_not_started_change_nothing(place: str, tmp_path: Path) -> None:
    command, server = NOT_STARTED[place]
    path, filled = tmp_path / "run.sh", command.format(model="my/model")
    path.write_text(f"{filled}\n", "utf-8")
    before = of_rollout(path)
    for number in (0, -1):
        lines = [f"export {option.name}={values(option)[number]}\n" for option in server.options if option.environment]
        path.write_text(f"{''.join(lines)}{filled}\n", "utf-8")
        assert of_rollout(path) == before
