"""Trainers' own configurations in a process of their own: a line of JSON asks with words, a line of JSON answers.

`python -m tests.engines.live_configurations verl|nemo-rl|skyrl|openrlhf|trl|prime-rl`: a first line has what the
configuration is where nothing is set. What parses and merges is the trainers' own; what it imports for other things is
empty.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import json
import logging
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

Made = Callable[[Sequence[str]], Any]


def _folder(package: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _verl() -> Made:
    """`verl.trainer.main_ppo`: hydra's compose of its configurations."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    folder = _folder("verl") / "trainer/config"

    def make(words: Sequence[str]) -> Any:
        with initialize_config_dir(str(folder), version_base=None):
            config = compose("ppo_trainer", overrides=["actor_rollout_ref.rollout.name=vllm", *words])
            return OmegaConf.to_container(config, resolve=True)

    return make


def _nemo_rl() -> Made:
    """`run_grpo.py --config FILE ...`: load_config, then parse_hydra_overrides. The first word is FILE."""
    from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()

    def make(words: Sequence[str]) -> Any:
        file, *overrides = words
        return OmegaConf.to_container(parse_hydra_overrides(load_config(file), overrides), resolve=True)

    return lambda words: make(words) if words else {}


def _skyrl() -> Made:
    """`skyrl.train.entrypoints.main_base`: SkyRLTrainConfig of overrides, without environments and LoRA."""
    root = _folder("skyrl").parent
    for package in ("skyrl", "skyrl/train", "skyrl/train/config"):
        _empty(package.replace("/", ".")).__path__ = [str(root / package)]
    for name, value in (
        ("skyrl_gym.envs.search.env:SearchEnvConfig", dataclasses.make_dataclass("SearchEnvConfig", [])),
        ("skyrl_gym.envs.sql.env:Text2SQLEnvConfig", dataclasses.make_dataclass("Text2SQLEnvConfig", [])),
        ("loguru:logger", logging.getLogger("loguru")),
        ("skyrl.backends.skyrl_train.inference_servers.utils:_uses_lora_weight_sync", lambda _: False),
    ):
        module, _, attribute = name.partition(":")
        setattr(_empty(module), attribute, value)
    config = importlib.import_module("skyrl.train.config.config").SkyRLTrainConfig
    return lambda words: dataclasses.asdict(config.from_cli_overrides(list(words)))


def _empty(name: str) -> Any:
    """An empty module in place of one, and of the packages it lies in."""
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        _empty(parent)
    return sys.modules.setdefault(name, types.ModuleType(name))


def _openrlhf() -> Made:
    """`openrlhf.cli.train_ppo_ray`: the statements of its main block as far as the parser's last argument."""
    source = _folder("openrlhf") / "cli/train_ppo_ray.py"
    main = next(node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.If))
    names: dict[str, Any] = {"argparse": argparse, "datetime": datetime}
    for statement in main.body:
        if isinstance(statement, ast.Assign) and "parse_args" in ast.dump(statement.value):
            break
        exec(compile(ast.Module([statement], []), str(source), "exec"), names)  # noqa: S102  (their own parser)
    return lambda words: vars(names["parser"].parse_args(list(words)))


def _trl() -> Made:
    """`trl grpo`: the parser that TRL makes of GRPOConfig and ModelConfig."""
    from trl.scripts.utils import TrlParser
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.model_config import ModelConfig

    parser = TrlParser((GRPOConfig, ModelConfig))
    return lambda words: vars(parser.parse_args(["--output_dir", "out", *words]))


def _prime_rl() -> Made:
    """`rl @ FILE ...`: RLConfig by its own `cli`, without the classes of environments, which are verifiers'.

    The first two words are `@` and FILE.
    """
    from pydantic_config import BaseConfig, cli

    class Free(BaseConfig):
        model_config: ClassVar = {"extra": "allow"}

    environments = _empty("verifiers.v1")
    for name in ("EnvConfig", "SingleAgentEnvConfig", "ServeConfig"):
        setattr(environments, name, type(name, (Free,), {}))
    environments.resolve_env_field = lambda data, _: data
    environments.narrowed_env_annotation = lambda _: None
    sys.modules["verifiers"].v1 = environments  # type: ignore[attr-defined]
    from prime_rl.configs.rl import RLConfig

    return lambda words: cli(RLConfig, args=list(words)).model_dump(mode="json") if words else {}


TRAINERS = {"verl": _verl, "nemo-rl": _nemo_rl, "skyrl": _skyrl, "openrlhf": _openrlhf, "trl": _trl,
            "prime-rl": _prime_rl}  # fmt: skip


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted names, mappings too, as JSON has them."""
    leaves: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            leaves[f"{prefix}{key}"] = json.loads(json.dumps(inner, default=str))
            leaves |= flat(inner, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = inner if inner is None or isinstance(inner, bool | int | float) else str(inner)
    return leaves


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    trainer = TRAINERS[sys.argv[1]]()
    print(json.dumps(flat(trainer(()))), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"values": flat(trainer(json.loads(line)))}
        except (SystemExit, Exception) as error:  # noqa: BLE001  (whatever it refuses a line with)
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
