"""Which known choices give the bits that were recorded, or that a user's function gave."""
