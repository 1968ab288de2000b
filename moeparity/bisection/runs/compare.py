"""Compares two finished runs by the files that they kept; needs no torch, and works across versions of moeparity."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from moeparity.bisection.runs.file import PLAN, RECIPE, REPORT, RunFile, finished_run, kept_bytes
from moeparity.bisection.runs.report import Change, ChoiceChange, Comparison, NodeChange, RunHead
from moeparity.errors import RunError, Where, display_path
from moeparity.output.words import between, percent

KEY = ("device", "cpu", "instruction set", "torch", "torch build", "threads", "matmul precision")
"""What may decide the bits of a node's values besides its choices; values are compared only if two runs agree in
this.
"""
_COST = ("schema", "run", "cost", "seconds", "digest", "provenance")
"""Parts of a report that tell cost or machine; they are left out, since the environment is compared by itself."""
_PATHS = ("reference_origin", "candidate_origin")
_MISSING = object()
Plain = Any


def compare(first: Path, second: Path) -> Comparison:
    """What changed between two finished runs. Raises RunError for a folder without one, or a damaged one."""
    runs = tuple(finished_run(folder) for folder in (first, second))
    plans, reports = (
        [_json(folder, run, name) for folder, run in zip((first, second), runs, strict=True)] for name in (PLAN, REPORT)
    )
    why_not = _not_comparable(runs, reports)
    environments = [_environment(folder, run) for folder, run in zip((first, second), runs, strict=True)]
    key = tuple(_changes({name: e.get(name) for name in KEY} for e in environments))
    return Comparison(
        first=_head(first, runs[0]),
        second=_head(second, runs[1]),
        environment=tuple(_changes(environments)),
        choices=tuple(_choices(*plans)),
        digests=tuple(_changes(map(_digests, plans))),
        metrics=() if why_not else tuple(_changes(map(_metrics, reports))),
        start=None if why_not else next(_changes({"starts": _start(report)} for report in reports), None),
        toggles=() if why_not else tuple(_changes(map(_toggles, reports))),
        key=key,
        nodes=None if key or why_not else _nodes(*reports),
        values={} if why_not else _values(*reports),
        not_compared=why_not,
    )


def _json(folder: Path, run: RunFile, name: str) -> dict[str, Plain]:
    data = json.loads(kept_bytes(folder, run, name))
    if not isinstance(data, dict):
        raise RunError(f"{Where(folder / name)}: damaged: it is no JSON object.")
    return data


def _not_comparable(runs: tuple[RunFile, ...], reports: list[dict[str, Plain]]) -> str:
    """Why the two reports can't be compared; "" if they can."""
    if runs[0].kind != runs[1].kind:
        return f"one is of `{runs[0].kind}`, the other of `{runs[1].kind}`"
    schemas = [report.get("schema") for report in reports]
    return "" if schemas[0] == schemas[1] else f"one report is {schemas[0]}, the other {schemas[1]}"


def _head(folder: Path, run: RunFile) -> RunHead:
    machine = f"{run.environment.get('host', '')}, {run.environment.get('cpu', '')}"
    return RunHead(
        folder=display_path(folder), kind=run.kind, recipe=run.recipe, finished=run.finished or "", machine=machine
    )


def _environment(folder: Path, run: RunFile) -> dict[str, str | None]:
    """The environment, the options that the caller gave, and the text of the recipe."""
    options = {f"option {name}": json.dumps(value) for name, value in run.request.items() if value not in (None, [])}
    kept_bytes(folder, run, RECIPE)
    return {**run.environment, **options, "text of the recipe": f"sha256 {run.files[RECIPE][:16]}"}


def _changes(pair: Any) -> Iterator[Change]:
    """The keys at which two mappings differ, in the order of the first."""
    first, second = pair
    for name in dict.fromkeys((*first, *second)):
        if first.get(name) != second.get(name):
            yield Change(what=name, first=first.get(name), second=second.get(name))


def _digests(plan: Mapping[str, Plain]) -> dict[str, str]:
    weights = {f"weights of {name}": f"sha256 {digest[:16]}" for name, digest in plan.get("weights", {}).items()}
    return {**weights, "tokens": f"sha256 {plan.get('tokens', {}).get('sha256', '')[:16]}"}


def _choices(first: Mapping[str, Plain], second: Mapping[str, Plain]) -> Iterator[ChoiceChange]:
    """Choices that differ; nodes of all layers share one line."""
    for side in ("reference", "candidate"):
        tables = [dict(_flat_choices(plan.get("sides", {}).get(side, {}))) for plan in (first, second)]
        counts: Counter[tuple[str, str | None, str | None]] = Counter()
        for node, name in dict.fromkeys((*tables[0], *tables[1])):
            values = tables[0].get((node, name)), tables[1].get((node, name))
            if values[0] != values[1]:
                pattern = re.sub(r"\[\d+\]", "[*]", node)
                counts[f"{pattern}:{name}" if node else name, *values] += 1
        for (address, first_value, second_value), nodes in counts.items():
            yield ChoiceChange(side=side, address=address, nodes=nodes, first=first_value, second=second_value)


def _flat_choices(side: Mapping[str, Plain]) -> Iterator[tuple[tuple[str, str], str]]:
    for name in ("dtype", "schedule"):
        if name in side:
            yield ("", name), str(side[name])
    phases = side.get("choices", {})
    for phase, nodes in phases.items():
        suffix = f"@{phase}" if len(phases) > 1 else ""
        for node, choices in nodes.items():
            for name, value in choices.items():
                yield (node, f"{name}{suffix}"), str(value)


def _metrics(report: Mapping[str, Plain]) -> dict[str, str]:
    """The gate's metric with its interval and verdict, and the other metrics."""
    verdict, metrics = report.get("verdict"), report.get("metrics") or {}
    words = {name: _number(value) for name, value in metrics.items()}
    if not isinstance(verdict, dict):
        return words
    value = verdict["value"]
    interval = between(_float(value["low"]), _float(value["high"]), ".4g")
    gate = f"gate {verdict['below']:g}" if isinstance(verdict["below"], float) else ""
    return {
        "verdict": verdict["status"],
        f"{verdict['metric']} of the gate": f"{_number(value['estimate'])} {interval}, {gate}",
        **words,
    }


def _start(report: Mapping[str, Plain]) -> str:
    """The first root: its node and its choices."""
    roots = report.get("roots") or ()
    if not roots:
        return "nowhere"
    choices = ", ".join(f"{c['attribute']} {c['reference']} | {c['candidate']}" for c in roots[0]["choices"])
    return f"{roots[0]['node']}: {choices}" if choices else roots[0]["node"]


def _toggles(report: Mapping[str, Plain]) -> dict[str, str]:
    """What each toggle makes: its fraction of the KL if there are shares, else its KL alone."""
    attribution = report.get("attribution")
    if isinstance(attribution, dict):
        return {
            row["name"]: f"{_part(row['of_whole'])} of the KL, {row['role']}"
            for row in attribution["shares"]["rows"]
            if row["depth"] == 0
        }
    toggles = report.get("toggles") or ()
    return {
        toggle["name"]: "cannot run" if toggle["alone"] is None else f"KL alone {_number(toggle['alone']['kl'])}"
        for toggle in toggles
    }


def _nodes(first: Mapping[str, Plain], second: Mapping[str, Plain]) -> NodeChange | None:
    """How many nodes changed: by the digests of their values on both sides, if both reports have digests, else by their
    errors, which are equal numbers if all bits are.
    """
    by: Literal["bits", "errors"] = "bits" if first.get("digests") and second.get("digests") else "errors"
    of_first, of_second = (_bits(report) if by == "bits" else _errors(report) for report in (first, second))
    common = [name for name in of_first if name in of_second]
    changed = [name for name in common if of_first[name] != of_second[name]]
    if not common:
        return None
    return NodeChange(by=by, compared=len(common), changed=len(changed), first=next(iter(changed), None))


def _bits(report: Mapping[str, Plain]) -> dict[str, Plain]:
    sides = [report["digests"][side] for side in ("reference", "candidate")]
    return {node: [side.get(node) for side in sides] for node in sides[0]}


def _errors(report: Mapping[str, Plain]) -> dict[str, Plain]:
    return {node["node"]: [node["carried"], node["local"]] for node in report.get("nodes") or ()}


def _values(first: Mapping[str, Plain], second: Mapping[str, Plain]) -> dict[str, int]:
    """How many values differ in each section; a section that an earlier version did not write counts as unchanged."""
    counts = {name: _unequal(first[name], second[name]) for name in first if name in second and name not in _COST}
    return {name: count for name, count in counts.items() if count}


def _unequal(first: Plain, second: Plain) -> int:
    """How many values of two pieces of JSON differ; if only one has a part, all its values count."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = [name for name in dict.fromkeys((*first, *second)) if name not in (*_COST, *_PATHS)]
        return sum(_unequal(first.get(name, _MISSING), second.get(name, _MISSING)) for name in names)
    if isinstance(first, list) and isinstance(second, list):
        return sum(
            _unequal(first_part, second_part)
            for first_part, second_part in zip_longest(first, second, fillvalue=_MISSING)
        )
    return int(type(first) is not type(second) or first != second)


def _float(value: Plain) -> float:
    return float(value) if isinstance(value, int | float | str) else float("nan")


def _number(value: Plain) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _part(value: Plain) -> str:
    return percent(value) if isinstance(value, float) else str(value)
