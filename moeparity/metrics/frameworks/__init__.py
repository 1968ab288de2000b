"""The metrics as each framework defines them, declared once each."""
