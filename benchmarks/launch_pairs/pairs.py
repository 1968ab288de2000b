"""Which files there are, and which pairs of them with which model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILES: Final = Path(__file__).parent / "files"
WRITTEN_FOR: Final = "Qwen3-30B-A3B"
"""The model that the files name."""

MODELS: Final = {"qwen3_moe": "Qwen/Qwen3-30B-A3B", "deepseek_v3": "deepseek-ai/DeepSeek-V3"}
"""By the type of the small checkpoint, what the files name in its place."""

SERVERS: Final = (
    "vllm-offline.py",
    "vllm-batch-invariant.sh",
    "vllm-tp4-ep.sh",
    "vllm-eager-tp8.sh",
    "vllm-dp-ep.yaml",
    "vllm-two-nodes.sh",
    "sglang-engine.py",
    "sglang-deterministic.yaml",
    "sglang-tp8.sh",
    "sglang-dp-attention.sh",
    "sglang-tp32.yaml",
    "trtllm-tp4-ep4.sh",
)
TRAINERS: Final = (
    "megatron-lm.sh",
    "verl/fsdp.sh",
    "verl/megatron.sh",
    "verl/mbridge.sh",
    "verl/hydra.yaml",
    "nemo-rl/grpo-moe-4n8g-megatron.yaml",
    "slime/run.sh",
    "miles.sh",
    "skyrl.sh",
    "trl.py",
    "openrlhf.sh",
    "prime-rl.toml",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A server's file, a trainer's file and the type of the model."""

    server: str
    trainer: str
    model: str

    @property
    def name(self) -> str:
        """As a folder is called."""
        return "--".join((self.model, Path(self.server).stem, *Path(self.trainer).with_suffix("").parts))

    @property
    def number(self) -> int:
        """Its place among all cases."""
        pair = SERVERS.index(self.server) * len(TRAINERS) + TRAINERS.index(self.trainer)
        return pair * len(MODELS) + list(MODELS).index(self.model)


def cases() -> Iterator[Case]:
    """Every pair with every model."""
    for server in SERVERS:
        for trainer in TRAINERS:
            for model in MODELS:
                yield Case(server, trainer, model)


def covering() -> list[Case]:
    """Twelve cases that have every file once, and both models."""
    models = list(MODELS)
    return [Case(s, TRAINERS[(i * 5 + 4) % 12], models[i % 2]) for i, s in enumerate(SERVERS)]


def launch_files(case: Case, folder: Path) -> tuple[Path, Path]:
    """The server's and the trainer's file in the folder, with all that they read, naming the model of the case."""
    for source in FILES.rglob("*"):
        if source.is_file():
            target = folder / source.relative_to(FILES)
            target.parent.mkdir(parents=True, exist_ok=True)
            hub = MODELS[case.model]
            text = source.read_text("utf-8").replace(MODELS["qwen3_moe"], hub)
            target.write_text(text.replace(WRITTEN_FOR, hub.rpartition("/")[2]), "utf-8")
    return folder / "servers" / case.server, folder / "trainers" / case.trainer
