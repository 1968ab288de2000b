"""Faults in what a real vLLM on a CPU loads: what its trace tells of each (`python -m benchmarks.explained.served`)."""
