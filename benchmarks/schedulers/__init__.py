"""Schedules made by rule beside those of the engines' own schedulers."""
