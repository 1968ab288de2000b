"""Diagnoses two columns of log-probabilities: do they mean the same, how were they computed, how old are the
weights.
"""

from moeparity.logs.diagnosis.finding import Diagnosis, Evidence, Finding
from moeparity.logs.diagnosis.observer import CAUSES, Observer

__all__ = ["CAUSES", "Diagnosis", "Evidence", "Finding", "Observer"]
