"""A metric over training steps: smoothed, its trend, its spikes and who carries them, as a picture."""

from moeparity.series.points import Point, Series, of_steps
from moeparity.series.runs import Repeats, repeats
from moeparity.series.summary import Summary, summarise

__all__ = ["Point", "Repeats", "Series", "Summary", "of_steps", "repeats", "summarise"]
