"""Schedules: which tokens go through an op together, and in which shape."""
