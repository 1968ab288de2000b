"""torch's DebugMode: both sides logged in one process and compared by `check_hash_mismatches`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case
from benchmarks.peers.environment import Environment, Session, ToolFailedError, bytes_in
from benchmarks.peers.result import Result


def run(case: Case, environment: Environment, checkpoint: Path, pair: Path, folder: Path) -> list[Result]:
    """One result; it writes nothing."""
    session = Session({"PYTHONPATH": "."})
    ran = session.must(
        [environment.python, "-m", "benchmarks.peers.run_debug_mode", case.name, str(checkpoint), str(pair)]
    )
    line = ran.output.strip().splitlines()[-1]
    if not line.startswith("{"):
        raise ToolFailedError(ran)
    return [
        read(
            json.loads(line),
            tool="torch DebugMode (norm and hash_tensor, stack traces)",
            seconds=session.seconds,
            written=bytes_in(folder),
            lines=(ran.line,),
        )
    ]


def read(output: dict[str, Any], **others: Any) -> Result:
    """A result from what the worker printed. An error that the comparison raises is no verdict."""
    difference = output["difference"]
    module = "" if difference is None else difference["module"].partition(".")[2]
    if "raised" in output:
        verdict, location = f"no verdict: {output['raised']}", "-"
    else:
        verdict = f"{output['mismatches']} mismatches in {output['calls']} calls"
        location = "-" if output["first"] is None else f"first mismatch: {output['first']}"
    return Result(
        verdict=verdict,
        location=location,
        places=() if location == "-" else (location,),
        first="-" if difference is None else f"{difference['call']} in {module} ({difference['source']})",
        first_places=() if difference is None else (module,),
        **others,
    )
