"""What a run shows: tensor divergence, routing flips, log-probability metrics and their statistics."""
