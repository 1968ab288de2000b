"""The cases that a seed draws, as folders with a faulty checkpoint each, and what the program's process is requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.explained.served.changes import CHANGES, STALE, Change
from benchmarks.explained.served.loaded import Loaded, Planted
from benchmarks.explained.served.programs import Program
from tests.checkpoint_factory import FILE
from tests.real.served import checkpoint, drawn_prompts

LATEST = 6
"""Before which step a request is added at the latest."""


TOP = 20
"""The most log-probabilities of a token that vLLM gives by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of each run: so many random tokens each, unless their prompts are given; before which step each is
    added unless that is drawn; how many tokens are drawn behind it; and whether a run is captured.
    """

    lengths: Sequence[int] = (24, 10, 3, 17)
    prompts: Sequence[Sequence[int]] = ()
    arrivals: Sequence[int] = (0, 1, 2, 4)
    new: int = 4
    captured: bool = True


CAPTURED = Requests()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of a program: it loads `folder`, and should load `right`; what is planted in it, by the change's name.

    previous: checkpoints of the step before, where something is stale.
    """

    name: str
    program: Program
    folder: Path
    right: Path
    planted: Mapping[str, Planted] = field(default_factory=dict)
    previous: tuple[Path, ...] = ()
    run: Mapping[str, Any]

    @property
    def own_folder(self) -> Path:
        """Where its trace lies, and what was said of it."""
        return Path(self.run["answer"]).parent

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where its faults show, as selectors."""
        return tuple(node for planted in self.planted.values() for node in planted.nodes)


def cases(folder: Path, seed: int, program: Program, requests: Requests = CAPTURED) -> Iterator[Case]:
    """A good run; further runs without a fault, half of which have their requests added at other steps; runs with a
    change, and with two at once. A seed draws changes, layers, experts, numbers, prompts and steps. Checkpoints that
    are there are not made again.
    """
    right = folder / program.label / "right"
    if not right.exists():
        checkpoint(program.model, right)
    vocab = int(json.loads((right / "config.json").read_text("utf-8"))["vocab_size"])
    prompts = requests.prompts or drawn_prompts(requests.lengths, vocab, seed=seed)
    for number in range(-1, program.clean):
        draw = Random(f"{seed} {number}")  # noqa: S311
        others = [0, *(draw.randrange(LATEST) for _ in prompts[1:])]
        arrivals = list(requests.arrivals) if number < program.clean // 2 else others
        name = "good" if number < 0 else f"clean-{number}"
        run = _run(folder / program.label / name, requests, {"prompts": prompts, "arrivals": arrivals})
        yield Case(name=name, program=program, folder=right, right=right, run=run)
    for name, changes in _drawn_changes(seed, program):
        case_folder = folder / program.label / name
        run = _run(case_folder, requests, {"prompts": prompts, "arrivals": list(requests.arrivals)})
        draw = Random(f"{seed} {program.label} {name}")  # noqa: S311
        wrong, earlier = case_folder / "checkpoint", case_folder / "earlier"
        planted = _changed(changes, right, wrong, draw)
        stale = any(CHANGES[change][1] == STALE for change in changes)
        if stale and not earlier.exists():
            _step_before(right, wrong, earlier)
        previous = (earlier,) if stale else ()
        yield Case(name=name, program=program, folder=wrong, right=right, planted=planted, previous=previous, run=run)


def _drawn_changes(seed: int, program: Program) -> Iterator[tuple[str, Sequence[Change]]]:
    """Changes alone, then pairs, none of which is stale: a checkpoint of the step before has one change."""
    draw = Random(f"{seed} {program.label}")  # noqa: S311
    fitting = [change for change, (models, _) in CHANGES.items() if program.model in models]
    yield from ((change.__name__, [change]) for change in draw.sample(fitting, program.changes))
    lasting = [change for change in fitting if CHANGES[change][1] != STALE]
    for _ in range(program.pairs):
        pair = draw.sample(lasting, 2)
        yield "+".join(change.__name__ for change in pair), pair


def _changed(changes: Sequence[Change], right: Path, wrong: Path, draw: Random) -> dict[str, Planted]:
    """The changes, and their checkpoint in `wrong`."""
    tensors = {name: tensor.clone() for name, tensor in load_file(right / FILE).items()}
    config = json.loads((right / "config.json").read_text("utf-8"))
    experts = int(config.get("num_experts", config.get("num_local_experts", 0)))
    chosen = {layer: list(range(experts)) for layer in range(int(config["num_hidden_layers"]))}
    loaded = Loaded(tensors=tensors, config=config, draw=draw, chosen=chosen)
    planted = {change.__name__: change(loaded) for change in changes}
    if not wrong.exists():
        shutil.copytree(right, wrong)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, wrong / FILE, {"format": "pt"})
        (wrong / "config.json").write_text(json.dumps(config), "utf-8")
    return planted


def _step_before(right: Path, wrong: Path, earlier: Path) -> None:
    """The checkpoint of the step before, in `earlier`: what is stale in the run has its weights, all others moved."""
    earlier.mkdir()
    weights, stale = load_file(right / FILE), load_file(wrong / FILE)
    random = torch.Generator().manual_seed(1)
    moved = {
        name: stale[name]
        if not torch.equal(stale[name], tensor)
        else (tensor + 0.02 * torch.randn(tensor.shape, generator=random) * tensor.float().std()).to(tensor.dtype)
        for name, tensor in weights.items()
    }
    save_file({name: tensor.contiguous() for name, tensor in moved.items()}, earlier / FILE, {"format": "pt"})
    (earlier / "config.json").write_text((right / "config.json").read_text("utf-8"), "utf-8")


def _run(case_folder: Path, requests: Requests, request: Mapping[str, Any]) -> dict[str, Any]:
    case_folder.mkdir(parents=True, exist_ok=True)
    # Asked for the likeliest tokens a server computes more, so that one that is captured is asked for none.
    trace = {"trace": str(case_folder / "trace"), "top": 0} if requests.captured else {"top": TOP}
    return {**request, **trace, "new": requests.new, "answer": str(case_folder / "answer.json")}


def jobs(every: Sequence[Case]) -> list[dict[str, Any]]:
    """What a program's process is asked: each checkpoint is loaded once."""
    by_folder: dict[Path, list[Mapping[str, Any]]] = {}
    for case in every:
        by_folder.setdefault(case.folder, []).append(case.run)
    return [{"folder": str(folder), "runs": runs} for folder, runs in by_folder.items()]
