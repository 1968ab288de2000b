"""A metric over training steps: its moving average, trend, spikes, the sequences that carry them, and figures."""
