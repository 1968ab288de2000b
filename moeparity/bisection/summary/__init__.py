"""The report in seven lines: first and again last on the screen."""
