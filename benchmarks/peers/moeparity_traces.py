"""moeparity from traces alone: captures of both passes, and `moeparity diff` of them, told no more than the peers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import SIDES, Case
from benchmarks.peers.environment import Environment, Session, bytes_in
from benchmarks.peers.result import Result

TOOL = "moeparity capture and diff (traces alone)"
COMMAND = [sys.executable, "-m", "moeparity.cli"]
KINDS = {
    "op": "an op gives other bits of equal inputs",
    "module": "a module gives other bits of equal inputs",
    "weight": "another weight is read",
    "input": "other inputs",
    "unseen": "made by what was not recorded",
    "wiring": "other values are read",
}
"""How differences begin, by the report's words for it."""


def run(case: Case, environment: Environment, checkpoint: Path, pair: Path, folder: Path) -> list[Result]:
    """One result: what `diff` says of two captures."""
    del environment  # captures run in this one
    session = Session()
    for side in SIDES:
        program = [sys.executable, "-m", "benchmarks.peers.captured", case.name, side, str(checkpoint), str(pair)]
        session.must([*program, str(folder / side)])
    written = sum(bytes_in(folder / side) for side in SIDES)
    report = folder / "report.json"
    ran = session.run([*COMMAND, "diff", *(str(folder / side) for side in SIDES), "--json", str(report)])
    if not report.exists():
        return [Result(tool=TOOL, verdict=f"error: {ran.output.strip()[-200:]}", code=ran.code)]
    others: dict[str, Any] = {
        "code": ran.code,
        "seconds": session.seconds,
        "written": written,
        "lines": tuple(each.line for each in session.ran),
    }
    return [read(json.loads(report.read_text("utf-8")), **others)]


def read(report: dict[str, Any], **others: Any) -> Result:
    """A result from the report of `diff`: where differences begin, in the order of the run, and in what way."""
    starts = report["starts"]
    where = tuple(dict.fromkeys(start["path"] for start in starts))
    kinds = tuple(dict.fromkeys(_kind(start) for start in starts))
    first = f"{_call(starts[0])} in {starts[0]['path']}" if starts else "-"
    return Result(
        tool=TOOL,
        verdict=f"{report['status']}: {report['reason']}",
        location=f"differences begin: {', '.join(where)}" if where else "-",
        places=where,
        first=first,
        first_places=where[:1],
        attribute="; ".join(kinds) or "-",
        **others,
    )


def _kind(start: dict[str, Any]) -> str:
    """In what way differences begin, and whether a weight that nothing was compared with may be why."""
    unread = f", or another weight is read ({start['unread']} not compared)" if start["unread"] else ""
    return f"{KINDS.get(start['kind'], start['kind'])}{unread}"


def _call(start: dict[str, Any]) -> str:
    """The op at which a difference begins, or the slot of the op that reads it."""
    return str(start["ops_b"][-1].rpartition(" ")[2] if start["ops_b"] else start["slot"])
