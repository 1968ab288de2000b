"""What makes equal bits, or a small k3, say nothing of a real model on real tokens."""
