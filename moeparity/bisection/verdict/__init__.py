"""The verdict: the gate, its metric with an interval, and the metrics beside it."""
