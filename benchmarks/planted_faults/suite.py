"""A case from its seed to its marks: drawn until it plants something, its truth fixed, moeparity asked, scored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import moeparity
from benchmarks.planted_faults import case_files
from benchmarks.planted_faults.answer import Answer, answer_of
from benchmarks.planted_faults.cases import Case, Unfit
from benchmarks.planted_faults.conditions import Scene
from benchmarks.planted_faults.kinds import draw, kind_of, tokens
from benchmarks.planted_faults.score import Mark, score
from benchmarks.planted_faults.side_runs import Runs
from benchmarks.planted_faults.truth import Truth, holds, trial_of, truth_of, unplanted
from moeparity.bisection.options import Options
from moeparity.inputs.model import Model, open_model

ATTEMPTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is kept of a case. redrawn: why earlier draws of this seed were left; planted: what is, in words."""

    seed: int
    kind: str
    model: str
    planted: str
    marks: tuple[Mark, ...]
    redrawn: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Suite:
    """Cases in a folder, on checkpoints by name."""

    folder: Path
    checkpoint: Callable[[str], Path]

    def opener(self, folder: Path | str, **_: object) -> Model:
        """A checkpoint, opened once."""
        return _opened(Path(folder))

    def scene(self, seed: int, model: str, sequences: int, length: int, micro_batch: int, padding: str) -> Scene:
        """What a draw knows."""
        opened = self.opener(self.checkpoint(model))
        inputs = tokens(seed, sequences, length, _vocabulary(opened), padding)
        return Scene(model, opened, inputs["input_ids"], inputs["attention_mask"], micro_batch)

    def runs(self, seed: int) -> Runs:
        """What runs the sides of a draw alone."""
        return Runs(self.folder / f"{seed:03}" / "alone", self.write, self.opener)

    def write(self, case: Case, folder: Path, settings: Mapping[str, Any] | None = None) -> Path:
        """A case as files."""
        checkpoint = self.checkpoint(case.model)
        opened = self.opener(checkpoint)
        inputs = tokens(case.seed, case.sequences, case.length, _vocabulary(opened), case.padding)
        return case_files.write(case, folder, checkpoint, inputs, settings)

    def fixed(self, seed: int) -> Fixed:
        """The first draw of a seed that plants what it says, with its truth."""
        reasons: list[str] = []
        for attempt in range(ATTEMPTS):
            try:
                case = draw(seed, attempt, self.scene)
            except Unfit as unfit:
                reasons.append(str(unfit))
                continue
            runs = self.runs(seed)
            truth = truth_of(case, runs)
            reason = unfit_for(case, truth, runs)
            if not reason:
                return Fixed(case, truth, runs, tuple(reasons))
            reasons.append(reason)
        raise AssertionError(f"seed {seed}: nothing was planted in {ATTEMPTS} draws: {reasons}")

    def ask(self, case: Case) -> Answer:
        """moeparity's answer."""
        path = self.write(case, self.folder / f"{case.seed:03}" / "case")
        report = moeparity.bisect(
            path, device="cpu", options=Options(allow_code=True, memory_limit=float("inf")), opener=self.opener
        )
        return answer_of(report)

    def result(self, seed: int) -> Result:
        """All of it."""
        fixed = self.fixed(seed)
        started = time.process_time()
        answer = self.ask(fixed.case)
        used = time.process_time() - started
        return Result(
            seed=seed,
            kind=kind_of(seed),
            model=fixed.case.model,
            planted=planted_line(fixed.case),
            marks=fixed.marks(answer),
            redrawn=fixed.redrawn,
            seconds=used,
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """A case with its truth, the runs that this comes from, and why earlier draws of its seed were left."""

    case: Case
    truth: Truth
    runs: Runs
    redrawn: tuple[str, ...] = ()

    def marks(self, answer: Answer) -> tuple[Mark, ...]:
        """An answer held to it."""
        case, runs = self.case, self.runs
        return score(
            case,
            self.truth,
            answer,
            lambda function, choices: holds(case, function, choices, runs),
            lambda toggle: trial_of(case, toggle, runs),
        )


def unfit_for(case: Case, truth: Truth, runs: Runs) -> str:
    """Why a draw cannot be asked about; empty where it can."""
    strange = unplanted(case, truth)
    if strange and all(node.endswith(".experts") for node in strange):
        # The faulty token goes to other experts: those that stay are multiplied in matrices of other heights.
        return "tokens that the fault does not reach are computed with other rows"
    if strange:
        raise AssertionError(f"seed {case.seed}: {strange} differ, and nothing is planted there")
    faulty = [function for function in case.functions if function.faulty]
    idle = any(holds(case, function, (), runs) for function in faulty)
    hidden = case.kind == "otherwise elsewhere" and len(truth.roots) < len(faulty)
    if idle or hidden or (case.semantic and not truth.guilty > 0):
        return "changes nothing"
    unspoken = [f for f in faulty if f.answers and not holds(case, f, f.answers, runs)]
    return f"{unspoken[0].answers} is not what {unspoken[0].text} computes" if unspoken else ""


def planted_line(case: Case) -> str:
    """What is planted, in a line."""
    parts = [f"{f.node} = {f.text}" for f in case.functions if f.faulty]
    parts += [f"{address} = {value}" for address, value in case.semantic.items()]
    behind = f"; beside it {', '.join(case.benign)}" if case.benign else ""
    batches = f"{case.sequences} x {case.length} tokens in {case.batches[0]} and {case.batches[1]}"
    return f"{'; '.join(parts) or 'nothing'}{behind}; {batches}{f', padded {case.padding}' if case.padding else ''}"


def _vocabulary(model: Model) -> int:
    return int(model.graph.config["vocab_size"])


@cache
def _opened(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def save(result: Result, folder: Path) -> None:
    """Keep a result."""
    (folder / f"{result.seed:03}" / "result.json").write_text(json.dumps(asdict(result), indent=1), "utf-8")
