"""Which known choices give the bits of a user's function, or come nearest to them."""
