"""A candidate that is a trace: what it shows, and what each layer of it makes, by grafts into the reference."""
