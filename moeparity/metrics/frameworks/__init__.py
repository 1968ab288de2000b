"""The metrics as each framework defines them, one declaration each."""
