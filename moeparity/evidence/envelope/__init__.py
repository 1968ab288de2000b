"""What other legal orders of the same sums give, and whether a value lies between them."""
