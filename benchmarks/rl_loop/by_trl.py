"""The same trainings by TRL's own GRPO: whether this loop's objective is the one that people run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rl_loop import measure, task
from benchmarks.rl_loop.run import RATE, put, warmed
from tests.engines.live import ROOT, run_beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """As in trl_program.py."""

    raw: bool = False
    corrected: bool = False


CASES: Mapping[str, Case] = {
    "matched": Case(),
    "raw, TIS": Case(raw=True, corrected=True),
}
"""By the setting of this loop that TRL is held to."""


def run(case: Case, seed: int, steps: int, folder: Path) -> Mapping[str, Any]:
    """The `rows` of a training by TRL, kept in the file `folder`.json."""
    result = folder.with_name(f"{folder.name}-{steps}-steps.json")
    if result.exists():
        existing: Mapping[str, Any] = json.loads(result.read_text("utf-8"))
        return existing
    folder.parent.mkdir(parents=True, exist_ok=True)
    question = {
        "weights": warmed(seed, folder.parent).state_dict(),
        "seed": seed,
        "steps": steps,
        "rate": RATE,
        "raw": case.raw,
        "corrected": case.corrected,
    }
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(Path(scratch) / name) for name in ("case.pt", "answer.pt")]
        torch.save(question, files[0])
        program = Path(__file__).with_name("trl_program.py")
        # The program imports the task and the model from here.
        folders, quiet = ("trl", "trl-needs", str(ROOT)), {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
        run_beside(folders, program, files, quiet)
        answer = torch.load(files[1])
    done = {"rows": [_row(step) for step in answer]}
    put(result, json.dumps(done).encode())
    return done


def _row(step: Mapping[str, Any]) -> Mapping[str, float]:
    row = measure.row(step["trainer"], step["record"], step["ids"][:, task.PROMPT :])
    log = step["log"]
    return {**row, "entropy": log["entropy"], "reward": log["reward"]}
