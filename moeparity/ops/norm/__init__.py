"""RMSNorm: its declaration, the launch rules of engines' kernels, and the orders these make."""
