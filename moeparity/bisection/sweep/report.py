"""What a sweep found; plain data for the terminal and `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any, get_type_hints

from moeparity.bisection.report import Report
from moeparity.output.findings import combined
from moeparity.output.json import to_json

SCHEMA = "moeparity.sweep/2"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""

_WRITTEN = (
    *("run", "reference", "candidate", "record", "verdict", "metrics", "roots", "flips"),
    *("warnings", "recorded", "classes"),
)
"""The parts of a report that a run without attribution has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep: by key, the values that replaced the recipe's, and the report, or why there is none."""

    values: Mapping[str, str | float | bool | None]
    report: Report | None
    error: str | None = None

    @property
    def exit_code(self) -> int:
        """0 parity, 1 divergence, 2 it could not be run, 3 inconclusive."""
        return 2 if self.report is None else self.report.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A recipe with some of its values replaced in turn; points in the order of their runs, the last key changes
    fastest.
    """

    recipe: str
    keys: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def exit_code(self) -> int:
        """The first of 2, 1, 3, 0 that is the exit code of some point."""
        return combined(point.exit_code for point in self.points)

    def to_json(self) -> str:
        """The sweep as strict JSON: NaN and infinities are written as the words nan, inf and -inf."""
        return to_json(SCHEMA, {"recipe": self.recipe, "keys": self.keys, "points": [*map(_point, self.points)]})


def written() -> type:
    """A dataclass with the form of what `Sweep.to_json` writes, for its JSON Schema."""
    hints = get_type_hints(Report, include_extras=True)
    values = Mapping[str, str | float | bool | None]
    outcome: list[tuple[str, Any]] = [("values", values), ("exit_code", int), ("error", str | None)]
    point: Any = make_dataclass("WrittenPoint", [*outcome, *((key, hints[key] | None) for key in _WRITTEN)])
    points: Any = tuple[point, ...]
    sweep: list[tuple[str, Any]] = [("recipe", str), ("keys", tuple[str, ...]), ("points", points)]
    return make_dataclass("WrittenSweep", sweep, namespace={"__doc__": Sweep.__doc__})


def _point(point: Point) -> dict[str, Any]:
    parts = {key: None if point.report is None else getattr(point.report, key) for key in _WRITTEN}
    return {"values": point.values, "exit_code": point.exit_code, "error": point.error, **parts}
