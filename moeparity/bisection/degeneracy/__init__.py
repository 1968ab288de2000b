"""Degenerate weights, tokens or logits: equal bits or a small k3 on them say nothing about a real model."""
