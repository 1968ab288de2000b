"""Pieces of a run computed by workers: processes here, or a ray cluster's (`docs/workers.md`)."""
