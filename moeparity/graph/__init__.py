"""From a graph file and a config.json to a frozen plan: expansion, profile overlay, and the difference of two plans."""
