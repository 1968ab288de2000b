"""Both sides on the ranks of a live job, compared bit by bit with simulated ranks."""
