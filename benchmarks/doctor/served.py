"""Faults in what a live vLLM samples with, given to the doctor as logs: transformers scores with the right weights."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.doctor.case import NEAR, commit, outcome
from benchmarks.explained.served.__main__ import run
from benchmarks.explained.served.cases import TOP, Case, Requests, cases
from benchmarks.explained.served.changes import CHANGES
from benchmarks.explained.served.programs import PROGRAMS
from moeparity.doctor.case import DoctorRequest
from moeparity.doctor.examine import examine
from moeparity.inputs.machine import cpu_name
from tests.doctor.programs import scored

REQUESTS, SHORTEST, LONGEST, NEW, LATEST = 24, 6, 24, 16, 8
CLEAN = 4
_LAYER = re.compile(r"layers\[(\d+)\]")
NAMES: Mapping[str, str] = {
    "experts_exchanged": "experts-exchanged(expert={a}, other={b}) of {experts}",
    "down_exchanged": "experts-exchanged(expert={a}, other={b}, part=down) of {experts}",
    "experts_turned": "experts one place behind of {experts}",
    "another_expert": "expert-of-another-expert(expert={a}, other={b}) of {experts}",
    "expert_zeroed": "expert-zeroed(expert={a}) of {experts}",
    "expert_scaled": "expert-scaled(factor={value}) of down of expert {a} of {experts}",
    "gate_and_up": "gate-and-up-exchanged of {experts}",
    "gate_and_up_of_one": "expert-gate-and-up-exchanged(expert={a}) of {experts}",
    "experts_of_another_layer": "weights of layer {other} in {experts}",
    "stale_expert": "stale expert {a} of {experts}",
    "stale_experts": "stale weights of {experts}",
    "stale_router": "stale weights of {node}",
    "stale_head": "stale weights of {node}",
    "stale_embedding": "stale weights of {node}",
    "tied_head": "head-tied",
    "zeroed_keys": "weights-zeroed of {node}",
    "scaled_values": "weights-scaled(factor={value}) of {node}",
    "projection_of_another_layer": "weights of layer {other} in {node}",
    "norm_of_another_layer": "weights of layer {other} in {node}",
    "key_norm_of_ones": "norm-weight-missing of {node}",
    "final_norm_of_ones": "norm-weight-missing of {node}",
    "other_theta": "rope-base(base={value})",
    "other_renormalisation": "renormalisation",
    "fewer_experts": "experts-per-token(count={value})",
    "other_eps": "norm-eps(eps={value})",
    "other_window": "window(window={value})",
    "query_bias_left_out": "bias-missing of {node}",
    "sinks_of_another_layer": "weights of layer {other} in {node}",
    "expert_bias_zeroed": "bias-missing of {experts}",
}
"""What is to be named; what is not here is no hypothesis. `value` is compared as a number."""


def served(folder: Path, seed: int, only: str = "") -> Iterator[dict[str, Any]]:
    """A line for each run of a server; those that are kept are not made again."""
    draw = Random(seed)  # noqa: S311
    lengths = [draw.randint(SHORTEST, LONGEST) for _ in range(REQUESTS)]
    arrivals = [draw.randrange(LATEST) for _ in range(REQUESTS)]
    requests = Requests(lengths=lengths, arrivals=arrivals, new=NEW, captured=False)
    for program in PROGRAMS:
        if program.name != "vLLM":
            continue
        fitting = sum(program.model in models for models, _ in CHANGES.values())
        # Of the first program every change, of the others as many as `benchmarks.explained.served` draws.
        every = replace(program, changes=fitting if program is PROGRAMS[0] else program.changes, clean=CLEAN, pairs=0)
        of_program = [case for case in cases(folder, seed, every, requests) if only in f"{program.label}/{case.name}"]
        if of_program:
            run(folder, every, of_program)
        yield from map(_examined, of_program)


def _examined(case: Case) -> dict[str, Any]:
    line = case.own_folder / "doctor.json"
    if not line.exists():
        line.write_text(json.dumps(_answer(case)), "utf-8")
    answer: dict[str, Any] = json.loads(line.read_text("utf-8"))
    return answer


def _answer(case: Case) -> dict[str, Any]:
    log = _log(case, json.loads(Path(case.run["answer"]).read_text("utf-8")))
    of_run = {"run": case.name, "program": case.program.label, "commit": commit(), "truth": list(_truths(case))}
    return of_run | _outcome(case, _without_top(log)) | {"top": _outcome(case, log)}


def _outcome(case: Case, log: Path) -> dict[str, Any]:
    begin = time.process_time()
    previous = case.previous[0] if case.previous else None
    report = examine(
        DoctorRequest(evidence=(log,), checkpoint=case.right, previous=previous, sampler=case.program.profile)
    )
    return {"seconds": time.process_time() - begin} | outcome(report)


def _truths(case: Case) -> Iterator[tuple[str, float | None]]:
    """The name that each fault should be given, "" if none should, and its number."""
    for change, planted in case.planted.items():
        node = planted.nodes[0]
        in_layer = _LAYER.match(node)
        layer = int(in_layer[1]) if in_layer else 0
        words = dict(zip("ab", planted.experts, strict=False))
        experts = f"layers[{layer}].moe.experts"
        name = NAMES.get(change, "").format(**words, node=node, experts=experts, other=1 - layer, value="{value}")
        yield name, planted.value


def _log(case: Case, answer: Mapping[str, Any]) -> Path:
    """What the server drew and said, and what transformers says of it with the right weights, in a log."""
    path = case.own_folder / "log.jsonl"
    rows = [prompt + behind for prompt, behind in zip(case.run["prompts"], answer["tokens"], strict=True)]
    columns = zip(rows, answer["logprobs"], _scored(case.right, rows), strict=True)
    with path.open("w", encoding="utf-8") as file:
        for number, (row, behind, trainer) in enumerate(columns):
            prompt = len(row) - len(behind)
            record = {"id": str(number), "input_ids": row, "mask": [0] * prompt + [1] * len(behind)}
            record |= {"logprobs": [None] * prompt + behind, "trainer_logprobs": [None, *trainer]}
            record["top_logprobs"] = [None] * prompt + answer["top"][number]
            file.write(json.dumps(record) + "\n")
    return path


def _without_top(log: Path) -> Path:
    """The log with what it says of the sampled tokens alone."""
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    path = log.with_name("sampled.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            del record["top_logprobs"]
            file.write(json.dumps(record) + "\n")
    return path


def _scored(checkpoint: Path, rows: Sequence[list[int]]) -> Iterator[list[float]]:
    """What transformers says of each, padded on the right in batches of four."""
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    values: Tensor = scored(checkpoint, ids, 4)
    for row, of_row in zip(rows, values.tolist(), strict=True):
        yield of_row[: len(row) - 1]


def verdict(line: Mapping[str, Any]) -> str:
    """What became of a run: right, wrong, or why it was given no name."""
    names = [*line["named"], *line["alike"][0]] if line["answer"] == "named" and len(line["named"]) == 1 else []
    if not line["truth"]:
        return "wrong" if names else str(line["answer"])
    ((truth, value),) = line["truth"]
    if not names:
        return str(line["answer"])
    is_right = truth and line["at"] == ["sampler"] and any(_is(name, truth, value) for name in names)
    return "right" if is_right else "wrong"


def _is(name: str, truth: str, value: float | None) -> bool:
    before, _, behind = truth.partition("{value}")
    if not (name.startswith(before) and name.endswith(behind)):
        return False
    number = name[len(before) : len(name) - len(behind)]
    if value is None or not number:
        return name == truth
    try:
        return abs(float(number) / value - 1) < NEAR
    except ValueError:
        return False


def page(lines: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The page, as Markdown: each run by the log-probabilities of its tokens alone, and with those of the likeliest
    tokens.
    """
    day = f"{datetime.now(UTC):%Y-%m-%d}, on {cpu_name()}, {os.cpu_count()} cores, one thread"
    versions = f"torch {version('torch')}, transformers {version('transformers')}, Python {platform.python_version()}"
    of_class = {"listed": list[Mapping[str, Any]](), "unlisted": [], "clean": []}
    for line in lines:
        names = [name for name, _ in line["truth"]]
        of_class["clean" if not names else "listed" if all(names) else "unlisted"].append(line)
    listed, unlisted, clean = of_class.values()
    beyond = [line for line in listed if line["size"] > 2 * line["legal"]]
    parts = [
        "# The doctor on logs of a real vLLM\n",
        f"Written by `python -m scripts.pages doctor-served` on {day}; {versions}; seed {seed}.\n",
        _READING,
        "| | the sampled tokens alone | with the likeliest tokens |",
        "|---|---|---|",
        _counts("wrong names", "wrong", lines),
        _counts("a fault that a hypothesis is, named right", "right", listed),
        _counts("of these, where it made more than twice the noise", "right", beyond),
        _counts("a fault that no hypothesis is, given a name", "wrong", unlisted),
        _counts("nothing planted, called noise", "noise", clean),
        "",
        "| model | planted | size | answer | with the likeliest | explains most |",
        "|---|---|---|---|---|---|",
        *map(_row, lines),
    ]
    return "\n".join(parts) + "\n"


def _counts(name: str, answer: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """A row of the table: how many runs have this verdict."""
    verdicts = [[verdict(line), verdict({**line, **line["top"]})] for line in lines]
    counts = [
        sum(("noise" if each == "as configured" else each) == answer for each in of_log)
        for of_log in zip(*verdicts, strict=True)
    ]
    return f"| {name} | " + " | ".join(f"{number} of {len(lines)}" for number in counts or (0, 0)) + " |"


_READING = f"""\
A vLLM 0.32.0 for CPUs serves {REQUESTS} requests of random prompts, {SHORTEST} to {LONGEST} tokens each, draws {NEW}
behind each, and lists the {TOP} likeliest tokens at each place; the models are small and have random weights. A fault
is planted in the checkpoint that it loads, or in its config.json. Transformers scores what it drew with the right
checkpoint. The doctor is given the log of both, once with what the server says of the likeliest tokens and once
without, the right checkpoint and, where weights are stale, the one before the update; it is told that the server is a
vLLM for CPUs, and nothing else.

Size is the mean difference, as a multiple of that between two engines without a mistake. A name is right with its side,
its place and its number, with an error of at most {NEAR:.0%}.
"""


def _row(line: Mapping[str, Any]) -> str:
    size = f"{line['size'] / line['legal']:.1f}" if line["legal"] else "-"
    model = line["program"].partition("/")[2]
    first = f"{line['first']}, {line['share']:.0%}"
    answers = f"{verdict(line)} | {verdict({**line, **line['top']})}"
    return f"| {model} | {line['run'].replace('_', ' ')} | {size} | {answers} | {first} |"
