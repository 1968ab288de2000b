"""Checkpoints on disk: what they contain, whether they are sound, and their tensors in the form that ops take."""
