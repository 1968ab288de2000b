"""What was run, on what, and what it cost."""
