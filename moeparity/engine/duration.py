"""How long work takes at least, told before it begins: what would run for days is refused, not waited for.

The rates are those of a fast machine, so that nothing is refused which would have come to an end in time; how long a
run really took stands in its report.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from moeparity.engine.walker import Walker
from moeparity.errors import MoeparityError
from moeparity.plan.graph import Graph

HOURS = "MOEPARITY_HOURS"
"""An environment variable: hours that a command's estimate may come to."""
_MOST_HOURS = 24.0
_MULTIPLY_ADDS = {"cpu": 1e12, "cuda": 2e14}  # per second, of GEMMs
_EVALUATION = 1e-5  # seconds that a kernel call takes beside what it computes


def most_hours() -> float:
    """The hours that may be asked for. Raises MoeparityError for an environment variable that is no such number."""
    text = os.environ.get(HOURS, str(_MOST_HOURS))
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not hours > 0:
        raise MoeparityError(f"{HOURS}={text}: expected a number of hours above 0, or inf.")
    return hours


def seconds_of(
    graph: Graph, walkers: Sequence[Walker], sequences: int, length: int, *, device: str, draws: int = 0
) -> float:
    """Seconds that a pass over [sequences, length] tokens takes at least, in which these walk and every op is called
    `draws` times more, on a `cpu` or `cuda` device.
    """
    work = len(walkers) + draws
    calls = sum(len(walker.schedule.on(sequences, length).steps) for walker in walkers) + draws
    multiply_adds = _multiply_adds(graph) * sequences * length * work
    return multiply_adds / _MULTIPLY_ADDS[device] + calls * len(graph.nodes) * _EVALUATION


def require_time(seconds: float, what: str, advice: str) -> None:
    """Raises MoeparityError where the estimate of `what` lies above the hours that may be asked for."""
    most = most_hours()
    if seconds > most * 3600:
        hours = seconds / 3600
        raise MoeparityError(
            f"{what} would take at least {hours:,.0f} hours, more than {most:g} ({HOURS} raises that). {advice}"
        )


def _multiply_adds(graph: Graph) -> float:
    """Per token: the elements of all weights, of experts those that a token is sent to."""
    chosen = max((int(node.params["top_k"]) for node in graph.nodes if node.op.routes), default=1)
    return float(
        sum(
            math.prod(ref.shape) * (min(ref.count, chosen) if ref.each else ref.count)
            for node in graph.nodes
            for ref in node.weights.values()
        )
    )
