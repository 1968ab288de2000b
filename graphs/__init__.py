"""Model graphs and engine profiles, as data."""
