"""How far a long step is, told to whoever asked; nothing here prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report of a long step.

    step: what is being done, for people; a step that starts over begins with a smaller `done`.
    at: where it is, such as a segment's name.
    done, total: steps of about equal length, such as nodes times waves of sequences.
    work, unit: what has been done since the step began, in a unit that makes a rate, such as op evaluations.
    """

    step: str
    at: str
    done: int
    total: int
    work: float
    unit: str


Callback = Callable[[Progress], None]
"""Called often, from the thread that computes: it has to be quick."""
