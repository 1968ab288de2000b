"""The cases that a seed draws, as folders with a faulty checkpoint each, and what the engine's process is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file, save_file

from benchmarks.explained.served.changes import CHANGES, Change
from benchmarks.explained.served.loaded import Loaded, Planted
from tests.checkpoint_factory import FILE
from tests.real.served import PLAIN, checkpoint, drawn_prompts

LENGTHS, NEW, ARRIVALS = (24, 10, 3, 17), 4, (0, 1, 2, 4)
LATEST = 6
"""Before which step a request is added at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of a server: it loads `folder`, and should load `right`; `planted` is None where nothing is wrong."""

    name: str
    folder: Path
    right: Path
    planted: Planted | None
    run: Mapping[str, Any]


def cases(folder: Path, seed: int, model: str, clean: int) -> Iterator[Case]:
    """A good run; further runs without a fault, half of which have their requests added at other steps; and each change
    that can happen to the model. A seed draws layers, experts, numbers, prompts and steps. Checkpoints that are there
    are not made again.
    """
    right = folder / model / "right"
    if not right.exists():
        checkpoint(model, right)
    vocab = int(json.loads((right / "config.json").read_text("utf-8"))["vocab_size"])
    prompts = drawn_prompts(LENGTHS, vocab, seed=seed)
    for number in range(-1, clean):
        draw = Random(f"{seed} {number}")  # noqa: S311
        others = [0, *(draw.randrange(LATEST) for _ in prompts[1:])]
        arrivals = list(ARRIVALS) if number < clean // 2 else others
        name = "good" if number < 0 else f"clean-{number}"
        yield _case(name, folder / model / name, (right, right), None, {"prompts": prompts, "arrivals": arrivals})
    for change in (change for change, models in CHANGES.items() if model in models):
        case_folder = folder / model / change.__name__
        planted = _changed(change, right, case_folder / "checkpoint", Random(f"{seed} {model} {change.__name__}"))  # noqa: S311
        run = {"prompts": prompts, "arrivals": list(ARRIVALS)}
        yield _case(change.__name__, case_folder, (case_folder / "checkpoint", right), planted, run)


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
    name: str, case_folder: Path, checkpoints: tuple[Path, Path], planted: Planted | None, request: Mapping[str, Any]
) -> Case:
    case_folder.mkdir(parents=True, exist_ok=True)
    run = {**request, "new": NEW, "trace": str(case_folder / "trace"), "answer": str(case_folder / "answer.json")}
    return Case(name=name, folder=checkpoints[0], right=checkpoints[1], planted=planted, run=run)


def jobs(every: Sequence[Case]) -> list[dict[str, Any]]:
    """What the engine's process is asked: each checkpoint is loaded once."""
    by_folder: dict[Path, list[Mapping[str, Any]]] = {}
    for case in every:
        by_folder.setdefault(case.folder, []).append(case.run)
    return [{"folder": str(folder), "engine": PLAIN, "runs": runs} for folder, runs in by_folder.items()]
