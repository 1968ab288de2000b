"""The peers on the suites' own pairs: their environment, their worker, and what they said."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import Environment, Session, prepare
from benchmarks.planted.score import part

TOOLS = ("first", "sglang", "msprobe", "debug")


def run(suite: str, folder: Path, cases: range, venv: Path) -> None:
    """Every tool on these cases; a tool that has answered all of them is not asked again."""
    environment = prepare(venv.resolve())
    for tool in TOOLS:
        out = folder / f"{tool}.jsonl"
        done = {line["number"] for line in _lines(out)}
        waiting = [str(number) for number in cases if number not in done]
        if waiting:
            command = [environment.python, "-m", "benchmarks.planted.worker", tool, suite, str(folder), str(out)]
            _session(environment).must([*command, *waiting])


def _session(environment: Environment) -> Session:
    return Session({"PYTHONPATH": f"{environment.shim}:."})


def _lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tool in one setting over a suite, as the page shows it.

    top: where it points is a place to blame. first: the same of the first difference in what it wrote. all_found: it
    points at the only place to blame there is. alarms: clean pairs in which it points anywhere.
    """

    tool: str
    cases: int
    top: str
    first: str
    all_found: str
    alarms: str
    zero: str
    seconds: float
    megabytes: float


def numbers(folder: Path) -> set[int]:
    """The cases that every tool has answered."""
    answered = [{int(str(line["number"])) for line in _lines(folder / f"{tool}.jsonl")} for tool in TOOLS]
    return set.intersection(*answered)


def rows(folder: Path) -> list[Row]:
    """What the peers said of a suite."""
    by_tool: dict[str, list[dict[str, object]]] = defaultdict(list)
    for tool in TOOLS:
        for line in _lines(folder / f"{tool}.jsonl"):
            by_tool[str(line["tool"])].append(line)
    return [_row(tool, lines) for tool, lines in by_tool.items()]


def _row(tool: str, lines: list[dict[str, object]]) -> Row:
    guilty, clean = [x for x in lines if not x["clean"]], [x for x in lines if x["clean"]]
    return Row(
        tool=tool,
        cases=len(lines),
        top=part([bool(x["hit"]) for x in guilty]),
        first=part([bool(x["first_hit"]) for x in guilty]),
        all_found=part([bool(x["hit"]) and x["guilty"] == 1 for x in guilty]),
        alarms=part([x["hit"] is not None for x in clean]),
        zero=part([x["code"] == 0 for x in guilty]) if any(x["code"] is not None for x in lines) else "-",
        seconds=sum(float(str(x["seconds"])) for x in lines) / len(lines),
        megabytes=sum(float(str(x["written"])) for x in lines) / len(lines) / 1e6,
    )
