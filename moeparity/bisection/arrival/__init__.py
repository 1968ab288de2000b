"""Sums in order of arrival: a side that has one is run again with further draws of that order."""
