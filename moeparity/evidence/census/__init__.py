"""A census of the tensors that a program holds: which are weights, which were made of weights, and which followed."""
