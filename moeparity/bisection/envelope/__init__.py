"""The legal-order envelope: `envelope: N`."""
