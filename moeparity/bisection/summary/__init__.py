"""The report in seven lines, which stand first and again last on the screen."""
