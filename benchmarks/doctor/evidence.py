"""What each kind of evidence adds: the same faulty runs, examined with less of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.doctor.case import Made, made, rewrite, verdict
from benchmarks.doctor.drawn import CLEAN, UNLISTED, slot

Examined = dict[str, Any]


def _without_trainer(of: Made) -> Examined:
    return of.examined(rewrite(of.log, of.log.with_name("sampler.jsonl"), {"trainer_logprobs": None}))


def _without_sampler(of: Made) -> Examined:
    return of.examined(rewrite(of.log, of.log.with_name("trainer.jsonl"), {"logprobs": None}))


def _other_routes(of: Made) -> Examined:
    """Without routes where the run has them."""
    return of.examined(rewrite(of.log, of.log.with_name("plain.jsonl"), {"routed_experts": None}))


VARIANTS: Mapping[str, Callable[[Made], Examined]] = {
    "all": lambda of: of.examined(),
    "without the weights before the update": lambda of: of.examined(with_previous=False),
    "without the routes": _other_routes,
    "without the trainer's log-probabilities": _without_trainer,
    "without the sampler's log-probabilities": _without_sampler,
}


def evidence(folder: Path, seed: int, runs: int) -> Iterator[Mapping[str, Any]]:
    """The line of each variant of so many runs with a fault that a hypothesis is; those of an earlier call are read."""
    lines = folder / f"evidence-{seed}.jsonl"
    kept = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    yield from kept
    there = {(each["number"], each["variant"]) for each in kept}
    faulty = (number for number in range(10 * runs + 10) if slot(number)[0] not in {CLEAN, UNLISTED})
    with lines.open("a", encoding="utf-8") as file:
        for number in [number for number, _ in zip(faulty, range(runs), strict=False)]:
            todo = [name for name in VARIANTS if (number, name) not in there]
            of = made(folder, seed, number) if todo else None
            for name in todo:
                assert of is not None
                if name == "without the routes" and of.routes is None:
                    continue
                line = VARIANTS[name](of) | {"variant": name}
                print(json.dumps(line), file=file, flush=True)
                yield line
            shutil.rmtree(folder / f"case-{seed}", ignore_errors=True)


def table(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """By variant how many are named right, wrongly, or not."""
    yield "| given | runs | right | wrong name | no name |"
    yield "|---|---|---|---|---|"
    for name in VARIANTS:
        verdicts = [verdict(line) for line in lines if line["variant"] == name]
        right = sum(each in {"right", "named from the log"} for each in verdicts)
        wrong = verdicts.count("wrongly named")
        yield f"| {name} | {len(verdicts)} | {right} | {wrong} | {len(verdicts) - right - wrong} |"
