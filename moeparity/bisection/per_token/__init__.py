"""Metrics and flips of every single token, which the page draws and one safetensors file holds."""
