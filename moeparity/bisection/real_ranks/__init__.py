"""Both sides on the ranks of a live job, held to the simulated ones bit for bit."""
