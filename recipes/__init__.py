"""Recipes that come with moeparity, as data."""
