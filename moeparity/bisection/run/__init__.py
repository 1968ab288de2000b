"""What was run, on which machine, and what it cost."""
