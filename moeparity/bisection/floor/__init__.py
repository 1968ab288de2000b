"""The floor: how far the reference differs from itself."""
