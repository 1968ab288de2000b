"""The arithmetic of matrix instructions of GPUs, bit for bit, on any device of torch."""
