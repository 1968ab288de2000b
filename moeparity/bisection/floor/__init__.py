"""How far the reference lies from itself."""
