"""Whether users' functions give the same bits when they are called again on the same input."""
