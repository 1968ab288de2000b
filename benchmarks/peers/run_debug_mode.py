"""Log both sides of a case with torch's DebugMode, compare the logs, and print one line of JSON.

    python -m benchmarks.peers.run_debug_mode CASE CHECKPOINT TOKENS_FOLDER

`record_stack_trace` is on so that a call can be traced to its line of source.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from torch.utils._debug_mode import DebugMode

from benchmarks.peers.cases import SIDES, Case, case
from benchmarks.peers.programs import build, forward, tokens


def log(which: Case, side: str, checkpoint: Path, folder: Path) -> list[Any]:
    """Every call of one side, with its hashes."""
    model, ids = build(which, side, checkpoint), tokens(folder)
    mode = DebugMode(record_nn_module=True, record_stack_trace=True)
    with mode, DebugMode.log_tensor_hashes(hash_fn=["norm", "hash_tensor"]):
        forward(model, ids)
    calls: list[Any] = mode.logs
    return calls


def verdict(reference: list[Any], candidate: list[Any]) -> dict[str, Any]:
    """What `check_hash_mismatches` says: `mismatches` with the first one's call, or the error it raises."""
    try:
        mismatches = DebugMode.check_hash_mismatches(reference, candidate)
    except ValueError as error:
        return {"raised": f"ValueError: {error}"}
    return {"mismatches": len(mismatches), "first": mismatches[0]["call"] if mismatches else None}


def plain(calls: list[Any]) -> list[dict[str, Any]]:
    """The calls as data: name, hashes, depth, the enclosing module, the last line of source in transformers."""
    modules: list[tuple[int, str]] = []
    rows = []
    for call in calls:
        modules = [(depth, module) for depth, module in modules if depth < call.call_depth]
        if type(call).__name__ == "_AnnotateCall":
            modules.append((call.call_depth, call.render([]).removeprefix("[nn.Mod] ")))
        hashes = (call.log or {}).get("hash")
        rows.append(
            {
                "call": call.render([]).partition("(")[0],
                "hash": repr(hashes),
                "module": modules[-1][1] if modules else "",
                "source": _source(call.stack_trace or ""),
            }
        )
    return rows


def first_difference(reference: list[dict[str, Any]], candidate: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The candidate's first call that differs in name or hash; None where one log is the start of the other."""
    for call_a, call_b in zip(reference, candidate, strict=False):
        if (call_a["call"], call_a["hash"]) != (call_b["call"], call_b["hash"]):
            return {**call_b, "same_call": call_a["call"] == call_b["call"]}
    return None


def _source(stack: str) -> str:
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    for frame in reversed(frames):
        if "/transformers/" in frame or "/benchmarks/" in frame:
            path, line, _ = frame.removeprefix("File ").split(", ")
            return f"{Path(path.strip(chr(34))).name}:{line.removeprefix('line ')}"
    return ""


def main() -> None:
    """Log, compare, print."""
    which, checkpoint, folder = case(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    reference, candidate = (log(which, side, checkpoint, folder) for side in SIDES)
    output = {"calls": len(reference), "calls_candidate": len(candidate), **verdict(reference, candidate)}
    print(json.dumps({**output, "difference": first_difference(plain(reference), plain(candidate))}))


if __name__ == "__main__":
    main()
