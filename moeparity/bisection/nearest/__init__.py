"""Which known choice a user's function made."""
