"""Checkpoints on disk: what they hold, whether they are sound, and their tensors as the ops take them."""
