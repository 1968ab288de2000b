"""A candidate that is a trace: what it shows, and what each layer makes of the divergence, found by grafts."""
