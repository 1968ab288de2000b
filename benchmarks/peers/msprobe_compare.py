"""Ascend msprobe on the CPU: tensors at module level, and CRC-32 with first-difference analysis at two levels.

`compare -da` looks for folders named rank0; a dump of one CPU process is named after the process, and is renamed here.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import SIDES, Case
from benchmarks.peers.environment import Environment, Session, bytes_in
from benchmarks.peers.result import Result

_MODULE = re.compile(r"^Module\.(?P<fqn>.+)\.[A-Za-z]\w*\.forward\.\d+(?:\..*)?$")
_CALL = re.compile(r"^(?P<call>\w+\.\w+\.\d+\.forward)(?:\..*)?$")


@dataclass(frozen=True, slots=True)
class Setting:
    """A task of `config.json`, its level, and whether `compare` is asked for the first difference."""

    says: str
    task: str
    level: str
    analyse: bool


SETTINGS = (
    Setting("tensor, L0", "tensor", "L0", analyse=False),
    Setting("CRC-32, L0, -da", "statistics", "L0", analyse=True),
    Setting("CRC-32, mix, -da", "statistics", "mix", analyse=True),
)


def run(case: Case, environment: Environment, checkpoint: Path, pair: Path, folder: Path) -> list[Result]:
    """One result per setting, each with dumps of its own."""
    results = []
    for number, setting in enumerate(SETTINGS):
        run_folder = folder / str(number)
        session = Session({"PYTHONPATH": "."})
        for side in SIDES:
            config = _write_config(run_folder, side, setting)
            session.must(
                [
                    *(environment.python, "-m", "benchmarks.peers.dump_msprobe", case.name, side),
                    *(str(checkpoint), str(pair), str(config)),
                ]
            )
            step = run_folder / side / "step0"
            next(step.glob("proc*")).rename(step / "rank0")
        compare = [environment.tool("msprobe"), "compare", "-o", str(run_folder / "out")]
        dumps = {"-tp": run_folder / "candidate" / "step0", "-gp": run_folder / "reference" / "step0"}
        for flag, step in dumps.items():
            compare += [flag, str(step if setting.analyse else step / "rank0" / "dump.json")]
        session.must([*compare, "-da"] if setting.analyse else compare)
        others: dict[str, Any] = {
            "tool": f"msprobe compare ({setting.says})",
            "code": session.ran[-1].code,
            "seconds": session.seconds,
            "written": bytes_in(run_folder),
            "lines": tuple(ran.line for ran in session.ran),
        }
        results.append(_analysed(run_folder, others) if setting.analyse else read_rows(_rows(run_folder), **others))
    return results


def _write_config(run_folder: Path, side: str, setting: Setting) -> Path:
    config: dict[str, Any] = {
        "dump_path": str(run_folder / side),
        "rank": [],
        "step": [],
        "task": setting.task,
        "level": setting.level,
    }
    common: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["forward"]}
    config |= {"tensor": common, "statistics": {**common, "summary_mode": "md5"}}
    path = run_folder / f"{side}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config), "utf-8")
    return path


def _rows(run_folder: Path) -> list[dict[str, str]]:
    with next((run_folder / "out").glob("compare_result*.csv")).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_rows(rows: Sequence[dict[str, str]], *, code: int, **others: Any) -> Result:
    """A result from the rows of compare_result.csv, which come in the target's order of execution."""
    counts = Counter(row["Result"] for row in rows)
    flagged = next((row["NPU Name"] for row in rows if row["Result"] != "pass"), None)
    first = next((row["NPU Name"] for row in rows if ".output" in row["NPU Name"] and _differs(row["MaxAbsErr"])), None)
    return Result(
        verdict=f"exit {code}, " + ", ".join(f"{count} {word}" for word, count in counts.items()),
        location="-" if flagged is None else f"first flagged: {short(flagged)}",
        places=places(flagged, {}),
        first="-" if first is None else short(first),
        first_places=places(first, {}),
        code=code,
        **others,
    )


def _differs(error: str) -> bool:
    """A cell of MaxAbsErr: a number, `shape unmatched`, or a word for what could not be compared at all."""
    try:
        return float(error) != 0
    except ValueError:
        return error == "shape unmatched"


def _analysed(run_folder: Path, others: dict[str, Any]) -> Result:
    compared = json.loads(next((run_folder / "out").glob("compare_result*.json")).read_text("utf-8"))
    analysis_file = next((run_folder / "out").glob("diff_analyze*.json"), None)
    analysis = {} if analysis_file is None else json.loads(analysis_file.read_text("utf-8"))
    parents = json.loads((run_folder / "candidate" / "step0" / "rank0" / "construct.json").read_text("utf-8"))
    return read_analysis(analysis, compared, parents, **others)


def read_analysis(
    analysis: dict[str, Any], compared: dict[str, Any], parents: dict[str, Any], *, code: int, **others: Any
) -> Result:
    """A result of `-da`: the nodes it names per rank, and the first node it holds for different."""
    nodes = [node["op_name"] for rank in analysis.values() for node in rank]
    different = [name for name, node in compared.items() if not node["is_same"]]
    first = different[0] if different else None
    return Result(
        verdict=f"exit {code}, {len(nodes)} diff node" + ("s" if len(nodes) != 1 else "")
        if nodes
        else f"exit {code}, no diff node",
        location="-" if not nodes else f"diff node: {short(nodes[0], parents)}",
        places=tuple(place for node in nodes for place in places(node, parents)),
        first="-" if first is None else short(first, parents),
        first_places=places(first, parents),
        code=code,
        **others,
    )


def places(name: str | None, parents: dict[str, Any]) -> tuple[str, ...]:
    """The module a row is about; of a single API call, the module construct.json puts it in."""
    if name is None:
        return ()
    match = _MODULE.match(name)
    if match is not None:
        return (match["fqn"].removeprefix("module."),)
    call = _CALL.match(name)
    parent = parents.get(call["call"]) if call else None
    return places(parent, {}) or (name,)


def short(name: str, parents: dict[str, Any] | None = None) -> str:
    """A row's name as a reader would say it."""
    where = places(name, parents or {})[0]
    return where if name.startswith("Module.") else f"{name.removesuffix('.forward')} in {where}"
