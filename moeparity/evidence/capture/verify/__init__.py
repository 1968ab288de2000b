"""A running program held to a trace that was recorded before (`docs/capture.md`)."""
