"""A metric over training steps: smoothed, its trend, its spikes and who carries them, as a picture."""

from moeparity.logs.series.repeated_batch import Repeats, repeats
from moeparity.logs.series.summary import Point, Series, Summary, of_steps, summarise

__all__ = ["Point", "Repeats", "Series", "Summary", "of_steps", "repeats", "summarise"]
