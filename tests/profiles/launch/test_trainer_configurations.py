"""The readers of verl, NeMo-RL, SkyRL, OpenRLHF, TRL and prime-rl beside the configurations that these make themselves.

Compared is every setting of which the reader says anything, what it is where nothing is set among them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiles.launch.own_configuration import OwnConfiguration, lines, read_otherwise

pytestmark = pytest.mark.live
FILES = Path(__file__).parent / "files"
FIRST: dict[str, tuple[tuple[str, ...], ...]] = {
    "verl": (("model_engine=dp",), ("model_engine=megatron",)),
    "nemo-rl": ((str(FILES / "nemo-rl/megatron.yaml"),), (str(FILES / "nemo-rl/override.yaml"),)),
    "skyrl": ((),),
    "openrlhf": ((),),
    "trl": ((),),
    "prime-rl": (("@", str(FILES / "prime-rl/rl.toml")),),
}
"""Words that a line begins with: what makes another set of options."""
COUNTS = {"verl": 8, "nemo-rl": 60, "skyrl": 100, "openrlhf": 150, "trl": 150, "prime-rl": 200}


@pytest.mark.parametrize("trainer", list(FIRST))
def test_random_lines_come_to_what_the_trainer_makes_of_them(trainer: str, tmp_path: Path) -> None:
    trainer_config = OwnConfiguration(trainer)
    try:
        count = 0
        for first in FIRST[trainer]:
            trainer_config.defaults = trainer_config.ask(first)["values"]
            for words in ([*first], *lines(trainer_config, first, COUNTS[trainer], seed=1)):
                answer = trainer_config.ask(words)
                if "values" in answer:
                    count += 1
                    assert read_otherwise(trainer_config, words, answer["values"], tmp_path) == [], words
        assert count > COUNTS[trainer] / 2
    finally:
        trainer_config.close()


PRIME_RL_LINES = (
    "--inference.vllm.enforce-eager",
    "--inference.vllm.enforce_eager true --no-inference.enable-fp32-lm-head",
    "--inference.vllm.enforce-eager=true --inference.vllm.dtype=float16",
    "--trainer.model.moe-fused-kernel=true --trainer.model.attn=auto",
    "--trainer.model.moe_fused_kernel --no-trainer.model.moe-use-grouped-mm",
    "--inference.vllm.tensor-parallel-size 2 --inference.vllm.data-parallel-size 8",
    "--deployment.num-infer-gpus 2 --inference.vllm.tensor-parallel-size 1",
    "--inference.vllm.enable-expert-parallel false --no-inference.enable-fp32-router-logits",
)
"""What stands behind `=` goes to no option of the server; replicas are GPUs over tensor ranks."""


def test_spellings_of_prime_rl(tmp_path: Path) -> None:
    trainer_config = OwnConfiguration("prime-rl")
    try:
        (first,) = FIRST["prime-rl"]
        trainer_config.defaults = trainer_config.ask(first)["values"]
        script = (FILES / "prime-rl/run.sh").read_text("utf-8").partition("rl.toml ")[2]
        for line in (*PRIME_RL_LINES, script):
            words = [*first, *line.split()]
            assert read_otherwise(trainer_config, words, trainer_config.ask(words)["values"], tmp_path) == [], line
        assert "refused" in trainer_config.ask([*first, "--inference.model.enforce-eager"]), "of earlier versions"
    finally:
        trainer_config.close()
