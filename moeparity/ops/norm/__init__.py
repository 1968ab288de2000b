"""RMSNorm: its declaration, the launch rules of engines' kernels, and the orders of additions that follow from them."""
