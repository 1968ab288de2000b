"""Model graphs, engine profiles and faults, as data."""
