"""SGLang's dumper and comparator: both sides dumped, then compared at its default threshold and at exact equality."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import SIDES, Case
from benchmarks.peers.environment import Environment, Session, ToolFailedError, bytes_in
from benchmarks.peers.result import Result

THRESHOLDS = {"default, rel <= 1e-3": None, "max_abs <= 0": "max_abs <= 0"}
_TENSOR = re.compile(r"^(?:non_intrusive__)?(?P<module>.*?)\.?(?:inputs|output)(?:\..*)?$")


def run(case: Case, environment: Environment, checkpoint: Path, pair: Path, folder: Path) -> list[Result]:
    """One result per threshold; the dumps are shared, and counted in each."""
    dumps = Session({"PYTHONPATH": f"{environment.shim}:."})
    for side in SIDES:
        dumps.must(
            [environment.python, "-m", "benchmarks.peers.dump_sglang", case.name, side, str(checkpoint), str(pair)],
            DUMPER_ENABLE="1",
            DUMPER_NON_INTRUSIVE_MODE="all",
            DUMPER_ENABLE_OUTPUT_CONSOLE="0",
            DUMPER_DIR=str(folder / side),
            DUMPER_EXP_NAME="run",
        )
    dumped = bytes_in(folder)
    results = []
    for number, (setting, predicate) in enumerate(THRESHOLDS.items()):
        compare = Session(dict(dumps.variables))
        report = folder / f"report{number}.jsonl"
        ran = compare.run(
            [
                *(environment.python, "-m", "sglang.srt.debug_utils.comparator"),
                *("--baseline-path", str(folder / "reference" / "run"), "--target-path"),
                *(str(folder / "candidate" / "run"), "--output-format", "json", "--report-path", str(report)),
                *(() if predicate is None else ("--diff-threshold", ".*", predicate)),
            ]
        )
        if not report.exists():
            raise ToolFailedError(ran)
        records = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
        results.append(
            read(
                records,
                tool=f"SGLang comparator ({setting})",
                code=ran.code,
                seconds=dumps.seconds + compare.seconds,
                written=dumped + report.stat().st_size,
                lines=tuple(each.line for each in (*dumps.ran, *compare.ran)),
            )
        )
    return results


def read(records: Sequence[dict[str, Any]], *, code: int, **others: Any) -> Result:
    """A result from the report's records, which come in the target's order of execution."""
    summary = next(record for record in records if record["type"] == "summary")
    counts = {key: summary[key] for key in ("passed", "failed", "skipped", "errored") if summary[key]}
    tensors = [record for record in records if record["type"] == "comparison_tensor"]
    failed = next((record["name"] for record in tensors if not _passed(record)), None)
    first = next((record["name"] for record in tensors if not _equal(record)), None)
    return Result(
        verdict=f"exit {code}, " + ", ".join(f"{count} {word}" for word, count in counts.items()),
        location="-" if failed is None else f"first failed: {plain(failed)}",
        places=places(failed),
        first="-" if first is None else plain(first),
        first_places=places(first),
        code=code,
        **others,
    )


def places(name: str | None) -> tuple[str, ...]:
    """The module whose output a dumped tensor is. An input that differs speaks for no module of its own."""
    if name is None:
        return ()
    match = _TENSOR.match(name)
    if match is None:
        return (name,)
    return (match["module"] or "model",) if ".inputs" not in name else (f"before {match['module']}",)


def plain(name: str) -> str:
    """A tensor's name without the dumper's prefix."""
    return name.removeprefix("non_intrusive__")


def _passed(record: dict[str, Any]) -> bool:
    return record["diff"] is not None and record["diff"]["passed"] and not record["errors"]


def _equal(record: dict[str, Any]) -> bool:
    return record["diff"] is not None and record["diff"]["max_abs_diff"] == 0
