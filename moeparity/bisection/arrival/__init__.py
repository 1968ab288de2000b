"""Sums in order of arrival: a side that has one is drawn anew."""
