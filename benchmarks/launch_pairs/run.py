"""A case from its two files to what moeparity said, and whether that is right."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.launch_pairs import rule
from benchmarks.launch_pairs.checkpoints import EXPERT_WIDTH, checkpoint, unreadable
from benchmarks.launch_pairs.pairs import Case, launch_files
from benchmarks.launch_pairs.planted import plant_of, write
from tests.command import Done, inside

RECIPE, REPORT, ANSWER = "recipe.yaml", "report.json", "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What moeparity said of a case.

    refused: the error's words where it took one of the files or the recipe for none that runs; unread: what they are
    where no weight can be read. exit_code: of `bisect`, None where it was not run. toggles: all that the report
    has. left_out: those of them, alone or restored, that were not run, with the reason. where: where the report
    names the plant, "" where it doesn't. k3, verdict: of the report.
    """

    planted: str
    refused: str = ""
    unread: str = ""
    exit_code: int | None = None
    error: str = ""
    toggles: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str, str], ...] = ()
    where: str = ""
    k3: float | None = None
    verdict: str = ""
    seconds: float = 0.0


def answer_of(case: Case, folder: Path) -> Answer:
    """The answer kept in the case's folder, or moeparity's now."""
    file = folder / case.name / ANSWER
    if file.exists():
        return _read(json.loads(file.read_text("utf-8")))
    start = time.process_time()
    answer = asdict(ask(case, folder)) | {"seconds": time.process_time() - start}
    file.write_text(json.dumps(answer, indent=1), "utf-8")
    return _read(json.loads(file.read_text("utf-8")))


def _read(content: Mapping[str, Any]) -> Answer:
    lists = {"toggles": tuple(content["toggles"]), "left_out": tuple(tuple(t) for t in content["left_out"])}
    return Answer(**{**content, **lists})


def ask(case: Case, folder: Path) -> Answer:
    """Start from the two files, plant, bisect."""
    place, plant = folder / case.name, plant_of(case)
    written = init(case, folder)
    if written.returncode:
        unread = init(case, folder, weights=False)
        return Answer(planted=plant.says, refused=written.stderr.strip(), unread=unread.stderr.strip())
    write(plant, place / RECIPE)
    done = inside("bisect", RECIPE, "--device", "cpu", "--json", REPORT, cwd=place)
    if done.returncode not in (0, 1, 3):
        return Answer(planted=plant.says, exit_code=done.returncode, error=done.stderr.strip())
    report = json.loads((place / REPORT).read_text("utf-8"))
    return Answer(
        planted=plant.says,
        exit_code=done.returncode,
        toggles=tuple(toggle["name"] for toggle in report["toggles"]),
        left_out=tuple(_left_out(report)),
        where=where_named(report, plant.toggle),
        k3=report["metrics"]["k3"],
        verdict=done.stdout.splitlines()[0],
    )


def init(case: Case, folder: Path, *, weights: bool = True) -> Done:
    """`moeparity init` of the case's checkpoint and files, in the case's folder."""
    place = folder / case.name
    server, trainer = (file.relative_to(place) for file in launch_files(case, place))
    model = checkpoint(case.model, folder)
    shown = model if weights else unreadable(model)
    return inside("init", shown, "--server", server, "--trainer", trainer, "--out", RECIPE, "--force", cwd=place)


def _left_out(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every toggle that the report says it left out, alone or restored."""
    ways = ("alone", "restored")
    return [(name, way, group["reason"]) for group in report["left_out"] for way in ways for name in group[way]]


def where_named(report: Mapping[str, Any], toggle: str) -> str:
    """Where a report names a toggle as the one that matters: the first screen's blame, what starts, or the table, if
    none else makes more alone and none leaves less restored.
    """
    if toggle in report["summary"]["blame"]:
        return "blame"
    table = [t for t in report["toggles"] if t["alone"] is not None and t["restored"] is not None]
    row = next((t for t in table if t["name"] == toggle), None)
    if row is None:
        return ""
    most = all(row["alone"]["kl"] >= rival["alone"]["kl"] for rival in table)
    least = all(row["restored"]["kl"] <= rival["restored"]["kl"] for rival in table)
    return "table" if most and least else ""


def faults_of(case: Case, answer: Answer) -> list[str]:
    """What is not as it should be, in words."""
    if case.server in rule.REFUSED or case.trainer in rule.REFUSED:
        return _of_refusal(case, answer)
    if answer.refused or answer.exit_code not in (0, 1, 3):
        return [f"no report: {answer.refused or answer.error}"]
    true = rule.impossible(case.server, case.trainer, answer.toggles, EXPERT_WIDTH, shared=case.model == "deepseek_v3")
    claimed = {(toggle, way) for toggle, way, _ in answer.left_out}
    wrong = [f"left out, and runs: {toggle} {way}" for toggle, way in sorted(claimed - true)]
    wrong += [f"not left out, and cannot run: {toggle} {way}" for toggle, way in sorted(true - claimed)]
    return wrong if answer.where else [*wrong, f"not named: {answer.planted}"]


def _of_refusal(case: Case, answer: Answer) -> list[str]:
    if not answer.refused:
        return ["not refused"]
    wrong = [] if names_what_is_refused(case, answer.refused) else [f"refused, and not by name: {answer.refused}"]
    return wrong if answer.refused == answer.unread else [*wrong, "refused after weights were read"]


def names_what_is_refused(case: Case, message: str) -> bool:
    """Whether an error names what one of the files starts: elsewhere than in the file's name and in the list of what is
    expected.
    """
    files = [file for file in (case.server, case.trainer) if file in rule.REFUSED]
    sentence = message.partition("Expected one of")[0]
    return any(rule.REFUSED[file] in sentence.replace(file, "") for file in files)
