"""What is wrong with a pair of log-probability columns, by what they mean, how they were computed, how old."""

from moeparity.logs.diagnosis.finding import Diagnosis, Evidence, Finding
from moeparity.logs.diagnosis.observer import CAUSES, Observer

__all__ = ["CAUSES", "Diagnosis", "Evidence", "Finding", "Observer"]
