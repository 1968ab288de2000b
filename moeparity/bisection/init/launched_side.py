"""One side that a launch file starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeparity.plan.graph import Graph
from moeparity.profiles.launch.launch_schema import ADAPTER, STEPS
from moeparity.profiles.launch.report import Launch, LaunchSide
from moeparity.profiles.launch.show import warning_line

REFERENCE = "reference"
"""The role of the side that stands in if only one side was launched: transformers with eager attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One launched side, and the launch that it is part of. checkpoint: with which it was read."""

    launch: Launch
    side: LaunchSide
    checkpoint: Path | None = None

    @property
    def role(self) -> str:
        """`trainer` or `server`, whichever program starts the server."""
        return self.side.role if self.side.role in ("trainer", REFERENCE) else "server"

    def warnings(self, graph: Graph, *, on_steps: bool = False) -> tuple[str, ...]:
        """A line for each option that decides this side's numerics and of which no profile says how. That there is an
        adapter is none of these where the graph has one, nor what steps show where it runs on recorded ones.
        """
        covers = {ADAPTER: bool(graph.adapted), STEPS: on_steps}
        of_side = (warning for warning in self.launch.warnings if warning.role == self.side.role)
        return tuple(warning_line(each) for each in of_side if not covers.get(each.covered_by or "", False))

    @property
    def adapts(self) -> bool:
        """Whether the file starts a LoRA adapter, at this side or at another one."""
        return any(warning.covered_by == ADAPTER for warning in self.launch.warnings)
