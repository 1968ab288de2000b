"""Recipe, graph and profile bound into frozen plans; their differences as toggles. No torch here."""
