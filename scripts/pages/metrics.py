"""The tables of docs/metrics.md, from the declarations in `moeparity/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.metrics.declaration import Metric
from moeparity.metrics.registry import METRICS, SETS


def tables(_: str = "") -> str:
    """A table for each set."""
    return "\n".join(line for name in SETS for line in _set(name))


def _set(name: str) -> Iterator[str]:
    of_set = [metric for metric in METRICS.values() if metric.set == name]
    yield f"## {'Of no framework' if name == 'common' else name}\n"
    yield "| metric | reduction | definition | estimates | healthy; alarm |"
    yield "|---|---|---|---|---|"
    yield from map(_row, of_set)
    yield f"\nSources: {'; '.join(dict.fromkeys(str(metric.source) for metric in of_set))}.\n"


def _row(metric: Metric) -> str:
    notes = [metric.formula]
    if metric.clamp != "none":
        notes.append(f"clamped: {metric.clamp}")
    if not metric.not_finite.startswith("kept"):
        notes.append(metric.not_finite)
    if metric.needs:
        notes.append(f"needs {', '.join(metric.needs)}")
    notes.append(metric.unit)
    published = {"": metric.healthy, "alarm ": metric.alarm}
    cells = (
        f"`{metric.name}`",
        metric.reduce.kind,
        "; ".join(notes),
        metric.estimates,
        "; ".join(f"{word}{text}" for word, text in published.items() if text),
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
