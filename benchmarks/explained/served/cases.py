"""The cases that a seed draws, as folders with a faulty checkpoint each, and what the engine's process is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file, save_file

from benchmarks.explained.served.changes import CHANGES, Change, Loaded, Planted
from tests.checkpoint_factory import FILE
from tests.real.served import PLAIN, checkpoint, drawn_prompts

LENGTHS, NEW, ARRIVALS = (24, 10, 3, 17), 4, (0, 1, 2, 4)
BATCHES = ((24, 10, 3, 17), (9, 31), (5, 6, 7, 8, 9), (40,), (2, 2, 2, 20))
"""Lengths of the prompts of the runs without a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of a server: `planted` is None where nothing is wrong."""

    name: str
    model: str
    folder: Path
    right: Path
    planted: Planted | None
    run: Mapping[str, Any]


def cases(folder: Path, seed: int, models: tuple[str, ...], clean: int) -> Iterator[Case]:
    """Of each model runs without a fault, and each change that can happen to it; a seed draws layers, experts, numbers
    and prompts. Checkpoints that are there are not made again.
    """
    for model in models:
        right = folder / model / "right"
        if not right.exists():
            checkpoint(model, right)
        vocab = int(json.loads((right / "config.json").read_text("utf-8"))["vocab_size"])
        prompts = drawn_prompts(LENGTHS, vocab, seed=seed)
        for number in range(clean):
            drawn = drawn_prompts(BATCHES[number % len(BATCHES)], vocab, seed=seed + number // len(BATCHES))
            yield _case(f"clean-{number}", model, folder, right, right, None, drawn)
        for change in (change for change, of in CHANGES.items() if model in of):
            wrong = folder / model / change.__name__
            planted = _changed(change, right, wrong / "checkpoint", Random(f"{seed} {model} {change.__name__}"))  # noqa: S311
            yield _case(change.__name__, model, folder, right, wrong / "checkpoint", planted, prompts)


def _changed(change: Change, right: Path, wrong: Path, draw: Random) -> Planted:
    """The change, and its checkpoint in `wrong`."""
    tensors = {name: tensor.clone() for name, tensor in load_file(right / FILE).items()}
    config = json.loads((right / "config.json").read_text("utf-8"))
    experts = int(config.get("num_experts", config.get("num_local_experts", 0)))
    chosen = {layer: list(range(experts)) for layer in range(int(config["num_hidden_layers"]))}
    planted = change(Loaded(tensors=tensors, config=config, draw=draw, chosen=chosen))
    if not wrong.exists():
        shutil.copytree(right, wrong)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, wrong / FILE, {"format": "pt"})
        (wrong / "config.json").write_text(json.dumps(config), "utf-8")
    return planted


def _case(
    name: str, model: str, folder: Path, right: Path, wrong: Path, planted: Planted | None, prompts: list[list[int]]
) -> Case:
    own = folder / model / name
    own.mkdir(parents=True, exist_ok=True)
    run = {
        "prompts": prompts,
        "new": NEW,
        "arrivals": [ARRIVALS[number % len(ARRIVALS)] for number in range(len(prompts))],
        "trace": str(own / "trace"),
        "answer": str(own / "answer.json"),
    }
    return Case(name=name, model=model, folder=wrong, right=right, planted=planted, run=run)


def jobs(every: list[Case]) -> list[dict[str, Any]]:
    """What the engine's process is asked: each checkpoint is loaded once."""
    by_folder: dict[Path, list[Mapping[str, Any]]] = {}
    for case in every:
        by_folder.setdefault(case.folder, []).append(case.run)
    return [{"folder": str(folder), "engine": PLAIN, "runs": runs} for folder, runs in by_folder.items()]
